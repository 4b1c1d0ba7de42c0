"""What two events are compared by, in columns of a plan or of a record. Part of event_rows.pyx."""


cdef struct Content:
    # What tells one event from another under the same key, its source apart.
    const uint8_t *member
    const uint8_t *key
    uint32_t member_size, key_size
    const int64_t *values
    int64_t occurred_at_us
    uint8_t flags


cdef uint32_t text_size(const uint32_t *ends, Py_ssize_t row) noexcept nogil:
    return ends[row] - ends[row - 1] if row else ends[0]


cdef bint same_text(
    const uint8_t *text, uint32_t size, const uint8_t *other, uint32_t other_size
) noexcept nogil:
    return size == other_size and not memcmp(text, other, size)


cdef bint same_content(const Content *event, const Content *earlier, int width) noexcept nogil:
    """Compare contents; the instant counts only where both sides gave one.

    Whose event it was is not known any more where its member was erased.
    """
    cdef bint instants = event.flags & earlier.flags & GIVEN
    return (
        (earlier.flags & HASHED or same_text(
            event.member, event.member_size, earlier.member, earlier.member_size))
        and not memcmp(event.values, earlier.values, width * sizeof(int64_t))
        and not (instants and event.occurred_at_us != earlier.occurred_at_us)
    )


cdef class LoggedRows:
    """The rows of a record of events, to compare others with.

    first_sequence, last_sequence: of the record.
    """

    cdef readonly int64_t first_sequence, last_sequence
    cdef const uint32_t[::1] member_ends, key_ends
    cdef const uint8_t[::1] members, keys, flags
    cdef const int64_t[::1] values, occurred_at_us
    cdef const uint16_t[::1] source_indexes
    cdef tuple sources
    cdef int width

    def __cinit__(self, record):
        self.first_sequence, self.last_sequence = record.first_sequence, record.last_sequence
        self.member_ends, self.members = record.member_ends, record.members
        self.key_ends, self.keys = record.key_ends, record.keys
        self.flags, self.values = record.flags, record.values
        self.occurred_at_us, self.source_indexes = record.occurred_at_us, record.source_indexes
        self.sources, self.width = record.sources, record.keys_per_value

    cdef Content _content(self, Py_ssize_t row) noexcept:
        cdef Content content
        content.member_size = text_size(&self.member_ends[0], row)
        content.member = &self.members[0] + self.member_ends[row] - content.member_size
        content.key_size = text_size(&self.key_ends[0], row)
        content.key = &self.keys[0] + self.key_ends[row] - content.key_size
        content.values = &self.values[row * self.width]
        content.occurred_at_us = self.occurred_at_us[row]
        content.flags = self.flags[row]
        return content

    cdef object _source(self, Py_ssize_t row):
        return self.sources[self.source_indexes[row] - 1] if self.source_indexes[row] else None
