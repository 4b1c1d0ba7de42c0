"""Texts that grow, and arrays as what they hold. Part of event_rows.pyx."""


cdef struct Texts:
    uint8_t *bytes
    uint64_t used, capacity


cdef int64_t *longs(array.array cells) noexcept:
    return <int64_t *>cells.data.as_longlongs


cdef uint32_t *ends_in(array.array cells) noexcept:
    return <uint32_t *>cells.data.as_uints


cdef uint16_t *shorts(array.array cells) noexcept:
    return <uint16_t *>cells.data.as_ushorts


cdef int append_text(Texts *texts, const char *text, Py_ssize_t size) except -1:
    cdef uint64_t wanted = texts.used + size
    if wanted > texts.capacity:
        wanted = grown(texts.capacity, wanted)
        if not resize_array(&texts.bytes, wanted, 1):
            raise MemoryError
        texts.capacity = wanted
    memcpy(texts.bytes + texts.used, text, size)
    texts.used += size
    return 0
