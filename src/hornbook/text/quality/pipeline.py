"""From options to filters, in the order in which they apply; a document is counted under the first that drops it.

    length -> patterns -> exact duplicates -> evaluation sets -> language -> near duplicates

The cheap ones come first, but near duplicates last, although languages cost more: they compare with documents that
stayed, and a document stays if nothing else drops it.
"""

from hornbook.text.quality.decontamination import Decontamination
from hornbook.text.quality.exact import ExactDuplicates
from hornbook.text.quality.filter import Filter
from hornbook.text.quality.language import Language
from hornbook.text.quality.length import Length
from hornbook.text.quality.near import NearDuplicates
from hornbook.text.quality.options import QualityOptions
from hornbook.text.quality.patterns import Pattern


def build_filters(options: QualityOptions) -> list[Filter]:
    """Return the filters that the options ask for; none for the defaults.

    Raises:
        UserError: an option is out of its range, a pattern is none, a language is not known, a path names nothing, or
            an extra is missing.
        DataError: an evaluation set cannot be read, or is empty.
        StorageError: the disk failed.
    """
    cheap, thorough = _cheap(options), _thorough(options)
    return [*cheap, *_evaluation(options), *thorough]  # evaluation sets are read when nothing else can be wrong


def _cheap(options: QualityOptions) -> list[Filter]:
    filters: list[Filter] = []
    if options.min_characters or options.min_words:
        filters.append(Length(options.min_characters, options.min_words))
    filters += [Pattern(pattern, "keep") for pattern in options.keep_matching]
    filters += [Pattern(pattern, "drop") for pattern in options.drop_matching]
    if options.exact_duplicates:
        filters.append(ExactDuplicates())
    return filters


def _evaluation(options: QualityOptions) -> list[Filter]:
    if not options.decontaminate:
        return []
    given = options.decontaminate, options.decontaminate_field
    return [Decontamination(*given, options.decontaminate_words, options.decontaminate_overlap)]


def _thorough(options: QualityOptions) -> list[Filter]:
    filters: list[Filter] = []
    if options.languages:
        filters.append(Language(options.languages, options.language_probability))
    if options.near_duplicates is not None:
        filters.append(NearDuplicates(options.near_duplicates))
    return filters
