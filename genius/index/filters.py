"""Filters on items: SQL expressions that Lance (DataFusion) evaluates, such as `lang = 'en' AND year >= 2000`.

This module decides which expressions may come from anyone: comparisons and a few harmless functions, of limited size.
"""

import re
from collections.abc import Collection, Iterable

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
_CURLY, _STRAIGHT = "‘’‚“”„´", "'text'"
_LITERAL = re.compile(r"Received literal \w+\((.*?)\) and could not convert to literal of type '(\w+)'", re.DOTALL)
_PREFIX = re.compile(  # of a message of Lance
    r"^(?:(?:Invalid user input|LanceError\(\w+\)|(?:External|Query Execution|Execution|Schema|Arrow|Cast) error|"
    r"Error during planning|Error applying filter expression to batch): )+"
)
_EXAMPLE = " A filter compares fields with values, as in \"lang = 'en' AND year >= 2000\"."
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
            refused = where[position]
            more = _unquoted(where, position) if refused not in _CURLY else f" Use straight quotes: {_STRAIGHT}."
            raise _refused(where, f"{refused!r} at character {position + 1} is not allowed", more)
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
            words = previous.lastgroup == group == "word" and f"{previous[0]} {text}"
            more = _put_quotes(words) if words and before is not previous else ""
            raise _refused(where, f"there is no operator such as = or AND before {text}", more)
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


def named_columns(where: str, columns: Iterable[str]) -> list[str]:
    """The columns that a filter names. It may name more of them than it reads."""
    words = {word.strip("`").lower() for word in re.findall(r"`[^`]*`|\w+", where)}
    return [column for column in columns if column.lower() in words]


def filter_error(where: str, error: Exception, fields: dict[str, str]) -> GeniusError:
    """Turn an error of Lance about a filter into a sentence. fields: what filters can name, and the types."""
    reason = lance_reason(error)
    known = ", ".join(f"{_quoted(name)} ({type})" for name, type in fields.items())
    listed = f" The fields of this index are {known}."
    if unknown := re.search(r'No field named (?:"([^"]+)"|([^\s.]+))', reason):
        name = unknown[1] or unknown[2]
        compared = re.search(
            rf"(?<!\w){re.escape(name)}`?\s*(?:[=<>!]|(?:between|ilike|in|is|like|not)\b)", where, re.I
        )
        return _refused(where, f"there is no field {name}", ("" if compared else _put_quotes(name)) + listed)
    if literal := _LITERAL.search(reason):
        return _refused(where, *_wrong_type(literal[1], literal[2]), listed)
    reason = _PREFIX.sub("", reason)
    written = " ".join(where.split())
    for verb in ("optimizing sql filter", "resolving filter expression"):
        reason = reason.removeprefix(f"Error {verb}: {written} (").removeprefix(f"Error {verb} {written}: ")
    reason = re.sub(r".*\((?:sql parser error|ParserError)\W*(.*)\)$", r"\1", _PREFIX.sub("", reason), flags=re.DOTALL)
    reason = reason.replace("Expected: an expression, found: EOF", "a value is missing at its end")
    reason = re.sub(r"^The filter .* does not return a boolean", "it is not a condition", reason, flags=re.DOTALL)
    reason = re.sub(r"\s*Candidate functions:.*", "", reason, flags=re.DOTALL)
    return _refused(where, " ".join(reason.split()).rstrip(".)"), _EXAMPLE + listed)


def _wrong_type(value: str, column_type: str) -> tuple[str, str]:
    """Reason and advice for a value that a field cannot be compared with."""
    text = value.strip('"')
    if column_type == "Utf8":
        return f"a field of texts is compared with {text}", f" Put quotes around it: '{text}'."
    if column_type == "Boolean":
        return f"a field of the values true and false is compared with {text}", " Write true or false, without quotes."
    return f"a field of numbers is compared with '{text}'", " Write a number, without quotes."


def _unquoted(where: str, position: int) -> str:
    """Advice if the refused character stands inside a word, as in en-GB or O'Brien."""
    start = position - len(re.split(r"[\s(,=<>]", where[:position])[-1])
    word = re.split(r"[\s),]", where[start:])[0]
    return _put_quotes(word) if where[start : start + 1].isalnum() else ""


def _put_quotes(words: str) -> str:
    escaped = words.replace("'", "''")
    return f" If {words} is a value, put quotes around it: '{escaped}'."


def _refused(where: str, reason: str, *more: str) -> GeniusError:
    shown = where if len(where) <= 200 else where[:200] + " ..."
    return GeniusError(f"The filter {shown!r} cannot be used: {reason}.{''.join(more) or _EXAMPLE}")


def _quoted(name: str) -> str:
    """A field name as it must be written in a filter."""
    return name if name.isidentifier() else f"`{name}`"
