from libc.stdint cimport int64_t


cdef int64_t scaled_decimal(const char *text, Py_ssize_t size, int decimals) except? -1
cdef int64_t time_us(str text) except? -1
cdef const char *checked_name(str text, Py_ssize_t bytes_max, Py_ssize_t *size) except NULL
