"""The shape of a value: from what a client wrote to scaled integers. Part of event_rows.pyx."""


cdef object scale(value, bint packed, tuple decimals, int64_t *scaled):
    """Scale a value, or return the refusal that the rules will give. Errors: Refusal."""
    cdef Py_buffer text
    cdef list texts
    cdef bytes each
    cdef int key
    broken = None
    if len(decimals) == 1 and not packed:
        # It lies inside a body of JSON, where no digit can follow a number.
        PyObject_GetBuffer(value, &text, PyBUF_SIMPLE)
        try:
            return scale_one(<const char *>text.buf, text.len, decimals[0], scaled, None)
        finally:
            PyBuffer_Release(&text)
    texts = [number_text(value, packed)] if len(decimals) == 1 else numbers(value, packed)
    if texts is None or len(texts) != len(decimals):
        raise invalid_field("value", f"a list of {len(decimals)} numbers is expected")
    for key in range(len(decimals)):
        each = texts[key]
        broken = scale_one(
            PyBytes_AS_STRING(each), len(each), decimals[key], scaled + key, broken)
    return broken


cdef object scale_one(
    const char *text, Py_ssize_t size, int decimals, int64_t *scaled, broken
):
    """Scale the number of one score key; broken: what was wrong with those before."""
    try:
        scaled[0] = scaled_decimal(text, size, decimals)
    except NotANumberError as error:
        raise invalid_field("value", str(error)) from None
    except PrecisionError as error:
        return Refusal("value_precision", f"value: {error}", field="value")
    except RangeError as error:
        return broken or Refusal("value_out_of_range", f"value: {error}", field="value")
    return broken
