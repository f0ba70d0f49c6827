"""Filters on items: SQL expressions that Lance (DataFusion) evaluates, such as `lang = 'en' AND year >= 2000`.

This module decides which expressions may come from anyone: comparisons and a few harmless functions, of limited size.
"""

import re
from collections.abc import Collection

from genius.errors import GeniusError
from genius.index.lance_errors import lance_reason

MAX_LENGTH = 10_000  # characters
MAX_OPERATIONS = 300  # names, keywords and operators; about a thousand in a row overflow DataFusion's stack
MAX_WILDCARDS = 100  # of one pattern; thousands take minutes to match
FUNCTIONS = (
    *("abs", "cast", "coalesce", "contains", "ends_with", "length", "lower", "round", "starts_with", "trim"),
    *("try_cast", "upper"),
)
_BEFORE_BRACKETS = {*FUNCTIONS, "and", "between", "case", "else", "in", "like", "not", "or", "then", "when"}
_JOINING = {  # keywords between two values
    *("and", "as", "between", "case", "distinct", "else", "escape", "from", "ilike", "in", "is", "like", "not", "or"),
    *("similar", "then", "to", "when"),
}
_TYPES = {"date", "interval", "time", "timestamp"}  # stand before a quoted value
_TOKEN = re.compile(
    r"""(?P<space>\s+)
    | (?P<quoted>'[^']*'|"[^"]*"|`[^`]*`)
    | (?P<value>-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)
    | (?P<word>[^\W\d]\w*)
    | (?P<operator>[=<>!]+|\()
    | (?P<other>[),])""",
    re.VERBOSE,
)


def check_filter(where: str, hidden: Collection[str] = ()) -> None:
    """Refuse a filter that is malformed, names a `hidden` column, or could take unlimited time or memory."""
    if not isinstance(where, str) or not where.strip():
        raise GeniusError(f"{where!r} is not a filter. Write one such as \"lang = 'en' AND year >= 2000\".")
    if len(where) > MAX_LENGTH:
        raise GeniusError(f"The filter has {len(where):,} characters; at most {MAX_LENGTH:,} are allowed. Use `ids`.")
    before: re.Match[str] | None = None  # the last token
    previous: re.Match[str] | None = None  # the last token that is not space
    position = operations = 0
    while position < len(where):
        token = _TOKEN.match(where, position)
        if token is None:
            raise _refused(where, f"{where[position]!r} at character {position + 1} is not allowed")
        text, group = token[0], token.lastgroup
        if group == "quoted" and before is not None and before.lastgroup == "word":
            raise _refused(where, f"there must be a space before {text}")
        if group == "quoted" and text.count("%") + text.count("_") > MAX_WILDCARDS:
            raise _refused(where, f"a value may hold at most {MAX_WILDCARDS} of the characters % and _")
        called = previous if text == "(" and previous and previous.lastgroup in ("word", "quoted") else None
        if called and called[0].lower() not in _BEFORE_BRACKETS:
            raise _refused(where, f"there is no function {called[0]}; there are {', '.join(FUNCTIONS)}")
        doubled = group == "quoted" and before is not None and before.lastgroup == "quoted"  # an escaped quote
        if previous and not called and not doubled and _ends_value(previous) and _begins_value(token, previous):
            raise _refused(where, f"there is no operator such as = or AND before {text}")
        name = text.strip("`").lower() if group == "word" or text[0] == "`" else ""
        if name.startswith("_") or name in hidden:
            raise _refused(where, f"there is no field {text}")
        minus = (
            text[0] == "-" and previous is not None and previous[0] not in "(,"
        )  # not the sign of a number in a list
        operations += group in ("word", "operator") or minus
        before, position = token, token.end()
        previous = previous if group == "space" else token
    if operations > MAX_OPERATIONS:
        raise GeniusError(
            f"The filter has {operations} names and operators; at most {MAX_OPERATIONS} are allowed. Write a list of "
            "values as `field IN (...)`, and a list of ids as `ids`."
        )


def _ends_value(token: re.Match[str]) -> bool:
    return token[0] == ")" or token.lastgroup in ("quoted", "value") or _is_name(token)


def _begins_value(token: re.Match[str], previous: re.Match[str]) -> bool:
    if token.lastgroup == "quoted":
        return previous[0].lower() not in _TYPES
    if token[0].lower() in ("end", "unsigned"):  # of a case, and of a type
        return False
    return token[0] == "(" or (token.lastgroup == "value" and token[0][0] != "-") or _is_name(token)


def _is_name(token: re.Match[str]) -> bool:
    """Names, and null, true and false, which stand where a name can stand."""
    return token.lastgroup == "word" and token[0].lower() not in _JOINING


def filter_error(where: str, error: Exception, fields: dict[str, str]) -> GeniusError:
    """Turn an error of Lance about a filter into a sentence. fields: what filters can name, and the types."""
    reason = re.sub(r"^(?:Invalid user input: )+", "", lance_reason(error))
    reason = re.sub(r"\. Valid fields are.*", "", reason, flags=re.DOTALL)
    reason = re.sub(r".*\((?:sql parser error|ParserError)\W*(.*)\)$", r"\1", reason.strip(), flags=re.DOTALL)
    reason = re.sub(r"^Error resolving filter expression .*: Invalid user input: |^Schema error: ", "", reason)
    known = ", ".join(f"{_quoted(name)} ({type})" for name, type in fields.items())
    return _refused(where, reason.strip().rstrip("."), f" The fields of this index are {known}.")


def _refused(where: str, reason: str, more: str = "") -> GeniusError:
    shown = where if len(where) <= 200 else where[:200] + " ..."
    return GeniusError(
        f"The filter {shown!r} cannot be used: {reason}. A filter compares fields with values, as in "
        f"\"lang = 'en' AND year >= 2000\".{more}"
    )


def _quoted(name: str) -> str:
    """A field name as it must be written in a filter."""
    return name if name.isidentifier() else f"`{name}`"
