# cython: boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""Text to exact integers and back: decimal numbers, times and names, with no float between.

Pure functions that own nothing. A score is an integer scaled by 10^decimals, a time an integer of
microseconds since 1970-01-01T00:00:00Z (proleptic Gregorian, without leap seconds). The calendar
arithmetic is Howard Hinnant's, "chrono-Compatible Low-Level Date Algorithms", 2014.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_AsUTF8AndSize
from libc.stdint cimport int64_t, uint64_t

import unicodedata

cdef int64_t WHOLE_MAX = (1 << 53) - 1
cdef int64_t SCALED_MAX = 10 ** 15 - 1
cdef int64_t DAY_US = 86_400_000_000
cdef int64_t TIME_MIN = -719_162 * DAY_US
cdef int64_t TIME_MAX = 2_932_897 * DAY_US - 1
# Far beyond the exponent that the digits of any text in memory can make up for.
cdef int64_t EXPONENT_MAX = 1 << 50


class NotANumberError(ValueError):
    """Raised when a text is not a number by JSON's grammar."""


class PrecisionError(ValueError):
    """Raised when a number has more digits after the point than are declared."""


class RangeError(ValueError):
    """Raised when a number is too large to be exact for every client."""


cdef inline bint _is_digit(char c) noexcept:
    return c'0' <= c <= c'9'


cdef inline Py_ssize_t _digits(const char *text, Py_ssize_t at) noexcept:
    """Return where the digits that begin at a place end; behind the text is no other."""
    while _is_digit(text[at]):
        at += 1
    return at


def parse_decimal(bytes text not None, int decimals):
    """Return a JSON number times 10^decimals, as an integer. O(length).

    NotANumberError for what is not a number by JSON's grammar, PrecisionError for one that is not
    a whole number of 10^-decimals, RangeError for one whose result lies outside ±(2^53 - 1) where
    decimals is 0 and outside ±(10^15 - 1) otherwise; in this order. decimals is 0 to 9.

    >>> parse_decimal(b"1.50", 2), parse_decimal(b"1e2", 0), parse_decimal(b"-0.0", 0)
    (150, 100, 0)
    """
    return scaled_decimal(PyBytes_AS_STRING(text), len(text), decimals)


cdef int64_t scaled_decimal(const char *digits, Py_ssize_t size, int decimals) except? -1:
    """Do what `parse_decimal` says; what follows the text must be no part of a number."""
    cdef Py_ssize_t start, whole_end, end, i, zeros = 0, significant = 0
    cdef int64_t exponent = 0, scaled = 0
    cdef bint negative = digits[0] == c'-', negative_exponent
    if not 0 <= decimals <= 9:
        raise ValueError("decimals are 0 to 9")
    start = negative
    whole_end = end = _digits(digits, start)
    if whole_end == start or (digits[start] == c'0' and whole_end > start + 1):
        raise NotANumberError("is not a number")
    if digits[end] == c'.':
        end = _digits(digits, end + 1)
        if end == whole_end + 1:
            raise NotANumberError("is not a number")
    i = end
    if digits[i] == c'e' or digits[i] == c'E':
        i += 1
        negative_exponent = digits[i] == c'-'
        i += digits[i] == c'-' or digits[i] == c'+'
        if not _is_digit(digits[i]):
            raise NotANumberError("is not a number")
        while _is_digit(digits[i]):
            exponent = min(exponent * 10 + (digits[i] - c'0'), EXPONENT_MAX)
            i += 1
        exponent = -exponent if negative_exponent else exponent
    if i != size:
        raise NotANumberError("is not a number")
    # The value is the digits without leading and trailing zeros, times a power of ten. Those
    # beyond the largest result need no looking at: their count alone puts it out of range.
    exponent += decimals - max(end - whole_end - 1, 0)
    for i in range(start, end):
        if digits[i] == c'.':
            continue
        if digits[i] == c'0':
            zeros += significant > 0
            continue
        significant += zeros + 1
        while zeros:
            scaled = scaled * 10 if significant <= 17 else scaled
            zeros -= 1
        scaled = scaled * 10 + (digits[i] - c'0') if significant <= 17 else scaled
    if not significant:
        return 0
    exponent += zeros
    if exponent < 0:
        raise PrecisionError(f"has more than {decimals} digits after the point")
    if significant + exponent <= 16:
        for i in range(exponent):
            scaled *= 10
    if significant + exponent > 16 or scaled > (SCALED_MAX if decimals else WHOLE_MAX):
        raise RangeError("is too large to be exact")
    return -scaled if negative else scaled


def format_decimal(int64_t scaled, int decimals):
    """Return the shortest exact decimal of scaled / 10^decimals. O(1).

    >>> format_decimal(150, 2), format_decimal(-5, 1), format_decimal(300, 2)
    (b'1.5', b'-0.5', b'3')
    """
    cdef char text[32]
    cdef int at = 32, i
    cdef uint64_t rest = <uint64_t>scaled
    cdef bint shown = False
    if not 0 <= decimals <= 9:
        raise ValueError("decimals are 0 to 9")
    if scaled < 0:
        rest = 0 - rest
    for i in range(decimals):
        shown |= rest % 10 != 0
        if shown:
            at -= 1
            text[at] = <char>(c'0' + rest % 10)
        rest //= 10
    if shown:
        at -= 1
        text[at] = c'.'
    while True:
        at -= 1
        text[at] = <char>(c'0' + rest % 10)
        rest //= 10
        if not rest:
            break
    if scaled < 0:
        at -= 1
        text[at] = c'-'
    return PyBytes_FromStringAndSize(text + at, 32 - at)


cdef int64_t _days_from_civil(int64_t year, int64_t month, int64_t day) noexcept:
    """Return the days from 1970-01-01 to a date; its years begin in March. year is positive."""
    year -= month <= 2
    cdef int64_t era = year // 400, of_era = year % 400
    cdef int64_t of_year = (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    return era * 146_097 + of_era * 365 + of_era // 4 - of_era // 100 + of_year - 719_468


cdef int _number(const char *text, int size) noexcept:
    """Return the number that `size` digits make, or -1."""
    cdef int i, number = 0
    for i in range(size):
        if not _is_digit(text[i]):
            return -1
        number = number * 10 + (text[i] - c'0')
    return number


cdef int _month_days(int year, int month) noexcept:
    if month == 2:
        return 29 if year % 4 == 0 and (year % 100 != 0 or year % 400 == 0) else 28
    return 30 if month in (4, 6, 9, 11) else 31


def parse_time(str text not None):
    """Return the microseconds since the epoch of an RFC 3339 time with an offset. O(1).

    At most six digits of fraction; no second of 60; the years 1 to 9999, in UTC, too. ValueError
    says what is wrong.

    >>> parse_time("1970-01-01T01:00:00.5+01:00")
    500000
    """
    return time_us(text)


cdef int64_t time_us(str text) except? -1:
    """Do what `parse_time` says."""
    cdef Py_ssize_t size, at = 19
    cdef const char *s
    cdef int64_t us, fraction = 0, unit = 1_000_000, offset = 0
    cdef int offset_hours, offset_minutes
    try:
        s = PyUnicode_AsUTF8AndSize(text, &size)
    except UnicodeEncodeError:
        raise ValueError("is not a time as of RFC 3339") from None
    if size < 20 or s[4] != c'-' or s[7] != c'-' or s[10] not in (c'T', c't') or (
        s[13] != c':' or s[16] != c':'
    ):
        raise ValueError("is not a time as of RFC 3339")
    cdef int year = _number(s, 4), month = _number(s + 5, 2), day = _number(s + 8, 2)
    cdef int hour = _number(s + 11, 2), minute = _number(s + 14, 2), second = _number(s + 17, 2)
    if min(year, month, day) < 1 or month > 12 or day > _month_days(year, month):
        raise ValueError("is not a date of the calendar")
    if min(hour, minute, second) < 0 or hour > 23 or minute > 59 or second > 59:
        raise ValueError("is not a time of day from 00:00:00 to 23:59:59")
    if s[at] == c'.':
        at += 1
        while _is_digit(s[at]):
            if unit == 1:
                raise ValueError("has more than six digits of fraction")
            unit //= 10
            fraction += (s[at] - c'0') * unit
            at += 1
        if unit == 1_000_000:
            raise ValueError("is not a time as of RFC 3339")
    if s[at] in (c'+', c'-') and size == at + 6 and s[at + 3] == c':':
        offset_hours, offset_minutes = _number(s + at + 1, 2), _number(s + at + 4, 2)
        if not (0 <= offset_hours <= 23 and 0 <= offset_minutes <= 59):
            raise ValueError("has an offset that does not exist")
        offset = (offset_hours * 60 + offset_minutes) * (1 if s[at] == c'+' else -1)
    elif s[at] not in (c'Z', c'z') or size != at + 1:
        raise ValueError("needs an offset, Z or ±hh:mm, at its end")
    us = (_days_from_civil(year, month, day) * 1440 + hour * 60 + minute - offset) * 60_000_000
    us += second * 1_000_000 + fraction
    if not TIME_MIN <= us <= TIME_MAX:
        raise ValueError("lies outside the years 1 to 9999")
    return us


cdef void _write(char *text, int64_t number, int size) noexcept:
    while size:
        size -= 1
        text[size] = <char>(c'0' + number % 10)
        number //= 10


def format_time(int64_t us):
    """Return a time in UTC with Z, with a fraction only where it is not zero. O(1).

    ValueError outside the years 1 to 9999.

    >>> format_time(500000), format_time(-1000000)
    ('1970-01-01T00:00:00.5Z', '1969-12-31T23:59:59Z')
    """
    if not TIME_MIN <= us <= TIME_MAX:
        raise ValueError("lies outside the years 1 to 9999")
    # Counted from 0000-03-01, where leap days come last in a year; all is positive from there.
    cdef int64_t days = (us - TIME_MIN) // DAY_US + 306, rest = (us - TIME_MIN) % DAY_US
    cdef int64_t era = days // 146_097, of_era = days % 146_097
    cdef int64_t years = (
        of_era - of_era // 1460 + of_era // 36_524 - of_era // 146_096
    ) // 365
    cdef int64_t of_year = of_era - (365 * years + years // 4 - years // 100)
    cdef int64_t march_month = (5 * of_year + 2) // 153
    cdef int64_t month = march_month + 3 if march_month < 10 else march_month - 9
    cdef char text[28]
    cdef int size = 19
    text[4] = text[7] = c'-'
    text[10], text[13], text[16], text[19] = c'T', c':', c':', c'.'
    _write(text, era * 400 + years + (month <= 2), 4)
    _write(text + 5, month, 2)
    _write(text + 8, of_year - (153 * march_month + 2) // 5 + 1, 2)
    _write(text + 11, rest // 3_600_000_000, 2)
    _write(text + 14, rest // 60_000_000 % 60, 2)
    _write(text + 17, rest // 1_000_000 % 60, 2)
    if rest % 1_000_000:
        _write(text + 20, rest % 1_000_000, 6)
        size = 26
        while text[size - 1] == c'0':
            size -= 1
    text[size] = c'Z'
    return text[:size + 1].decode("ascii")


def check_name(str text not None, Py_ssize_t bytes_max):
    """Return the UTF-8 of a member's name, a key or a source; ValueError says what is wrong.

    It is NFC, without control characters (category Cc), without white space around it, and 1 to
    bytes_max bytes long. O(length).

    >>> check_name("Žofia", 128)
    b'\\xc5\\xbdofia'
    """
    cdef Py_ssize_t size
    cdef const char *name = checked_name(text, bytes_max, &size)
    return PyBytes_FromStringAndSize(name, size)


cdef const char *checked_name(str text, Py_ssize_t bytes_max, Py_ssize_t *size) except NULL:
    """Do what `check_name` says; returns where the UTF-8 is, which belongs to the text."""
    cdef Py_ssize_t i, end
    cdef const char *s
    cdef bint ascii = True, control = False
    try:
        s = PyUnicode_AsUTF8AndSize(text, size)
    except UnicodeEncodeError:
        raise ValueError("has a surrogate, which is no character") from None
    end = size[0]
    if not end:
        raise ValueError("is empty")
    if end > bytes_max:
        raise ValueError(f"is longer than {bytes_max} bytes of UTF-8")
    for i in range(end):
        ascii &= <unsigned char>s[i] < 0x80
        control |= <unsigned char>s[i] < 0x20 or s[i] == 0x7f
    if not ascii:
        # Beyond ASCII, category Cc is U+0080 to U+009F.
        control |= any(["\x80" <= character <= "\x9f" for character in text])
    if control:
        raise ValueError("has a control character")
    if (s[0] == c' ' or s[end - 1] == c' ') if ascii else text != text.strip():
        raise ValueError("has white space around it")
    if not ascii and not unicodedata.is_normalized("NFC", text):
        raise ValueError("is not in Unicode's normal form C")
    return s
