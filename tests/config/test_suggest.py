from hornbook.config.suggest import did_you_mean, nearest


def test_nearest():
    assert nearest("lerning_rate", ["learning_rate", "beta1"]) == "learning_rate"
    assert nearest("zzz", ["learning_rate", "beta1"]) is None
    assert did_you_mean("bta1", ["learning_rate", "beta1"]) == '; did you mean "beta1"?'
    assert did_you_mean("zzz", []) == ""
