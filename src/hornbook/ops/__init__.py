"""Operators: functions on tensors that modules call, some with faster native forms."""
