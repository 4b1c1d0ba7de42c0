"""The dump of standings: columns copied in a moment and loaded again. Part of standings.pyx.

A dump has the rows and flags in order of row numbers, the order as row numbers, and the digest; of
sparse standings also the slot of each row. It loads beside a dump of the same `Members`.
"""


cdef list copy_columns(Standings standings):
    """Copy the columns of a dump, as `Standings.dump` says."""
    cdef size_t row = (standings.order.keys + 1) * sizeof(int64_t), done = 0
    cdef bytes rows = empty_column(standings.rows * row)
    cdef bytes flags = empty_column(standings.rows)
    cdef bytes order = empty_column(standings.order.members * 4)
    cdef bytes slots = empty_column(standings.rows * 4 if standings.map else 0)
    cdef char *rows_to = PyBytes_AS_STRING(rows)
    cdef char *flags_to = PyBytes_AS_STRING(flags)
    cdef char *slots_to = PyBytes_AS_STRING(slots)
    cdef uint32_t *order_to = <uint32_t *>PyBytes_AS_STRING(order)
    cdef uint32_t leaf, i
    standings.dumping += 1
    with nogil:
        if standings.rows:
            memcpy(rows_to, standings.order.rows, standings.rows * row)
            memcpy(flags_to, standings.flags, standings.rows)
        if standings.rows and standings.map:
            memcpy(slots_to, standings.order.slots, standings.rows * 4)
        for leaf in range(standings.order.leaf_count):
            for i in range(standings.order.leaf_size[leaf]):
                order_to[done + i] = order_leaf(&standings.order, leaf)[i] & ENTRY_BITS
            done += standings.order.leaf_size[leaf]
    standings.dumping -= 1
    return [("rows", rows), ("flags", flags), ("order", order), ("digest", standings.digest)] + (
        [("slots", slots)] if standings.map else [])


cdef int restore(
    Standings standings, const uint8_t[::1] rows, const uint8_t[::1] flags,
    const uint8_t[::1] slots, const uint8_t *order, uint64_t order_bytes
) except -1:
    """Fill new standings from columns; `order` may be NULL where it is that of the rows.

    Releases the GIL. Meanwhile the members are held as for a dump, because their names are read.
    """
    cdef uint64_t count = flags.shape[0], row = 8 * <uint64_t>(standings.order.keys + 1)
    if count > standings.members.count:
        raise ValueError("there are more rows than members")
    if <uint64_t>rows.shape[0] != count * row or (
        <uint64_t>slots.shape[0] != (count * 4 if standings.map else 0)
    ):
        raise ValueError("a column's length is not that of its rows")
    standings._look()
    standings._cover(count)
    standings.members.dumping += 1
    try:
        with nogil:
            if count:
                memcpy(standings.order.rows, &rows[0], count * row)
                memcpy(standings.flags, &flags[0], count)
            if count and standings.map:
                memcpy(standings.order.slots, &slots[0], count * 4)
            restore_rows(standings)
            restore_order(standings, order, order_bytes)
    finally:
        standings.members.dumping -= 1
    return 0


cdef int restore_rows(Standings standings) except -1 nogil:
    """Check each row on its own, map it, and sum up what the whole of them give."""
    cdef Order *order = &standings.order
    cdef uint32_t entry
    for entry in range(standings.rows):
        if not row_is_sound(order, standings.aggregation, entry, standings.flags[entry]):
            with gil:
                raise ValueError(f"row {entry} has flags that do not fit its score")
        if standings.map:
            restore_slot(standings, entry)
        if standings.flags[entry] & STANDS:
            order.members += 1
            standings.largest = largest_key(order, order_row(order, entry), standings.largest)
            sum_add(&standings.sum, digest_term(order, standings.units, entry))
    return 0


cdef int restore_slot(Standings standings, uint32_t entry) except -1 nogil:
    """Map the slot of a row of sparse standings."""
    cdef const uint32_t *slots = standings.order.slots
    cdef uint32_t slot = slots[entry]
    if not standings.flags[entry] & STANDS or slot >= standings.members.count or (
        map_cell(standings.map, slots, slot) != NULL
    ):
        with gil:
            raise ValueError(f"row {entry} does not stand, or has no slot of its own")
    if not map_reserve(standings.map, slots, slot):
        with gil:
            raise MemoryError
    map_add(standings.map, slot, entry)
    return 0


cdef int restore_order(
    Standings standings, const uint8_t *column, uint64_t column_bytes
) except -1 nogil:
    """Fill the order: one that rises and has as many entries as stand has each of them once."""
    cdef uint64_t n = column_bytes // 4, done
    cdef uint32_t entry
    if n != standings.order.members or column_bytes % 4:
        with gil:
            raise ValueError("the order has not one entry for each member standing")
    for done in range(n):
        entry = listed_entry(column, done)
        if entry >= standings.rows or not standings.flags[entry] & STANDS:
            with gil:
                raise ValueError(f"the order names row {entry}, which does not stand")
    if not order_reserve(&standings.order, n // LEAF_LOADED + 1):
        with gil:
            raise MemoryError
    done = order_fill(&standings.order, column, n)
    if done < n:
        with gil:
            raise ValueError(f"entry {done} of the order is out of place")
    return 0
