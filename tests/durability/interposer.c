/* Stands before libc's file-changing calls (LD_PRELOAD): counts them, makes one fail, records all.

   Owns: which calls on files below INTERPOSER_ROOT (the root itself included) are counted, what
   becomes of the one that a fault is armed for, and the trace. Knows nothing of boards or logs.

   Configured by the environment when a process begins, or by interposer_attach at any time after:
   INTERPOSER_ROOT   absolute path of a directory;
   INTERPOSER_STATE  a file of 4,096 bytes, shared by all processes: 64-bit words, see enum word;
   INTERPOSER_TRACE  optional: a file that each successful call is appended to, struct header below.

   Calls are made directly to the kernel, so there is nothing to look up and nothing to recurse
   into. A descriptor's path is asked for at each call: descriptors are reused, files renamed. A
   file whose last name is gone is not counted, since nothing of it can be seen after a crash.
   What goes through a mapping is not seen; LMDB without writemap makes nothing durable so. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

_Static_assert(sizeof(long) == 8, "offsets are passed to the kernel as one word");

#define EXPORTED __attribute__((visibility("default")))

enum word {
    VERSION,  /* 1 */
    CALLS,    /* calls counted so far */
    FIRE_AT,  /* the eligible call to hit: 1 is the first, 0 none */
    ACTION,   /* enum action */
    TIMES,    /* how many eligible calls from there on are hit; 0: all */
    FIRED,    /* how many were */
    MASK,     /* the operations that are eligible, a bit for each; 0: all */
    ELIGIBLE, /* eligible calls so far */
    LAST_HIT, /* the operation that was hit last */
    MARK,     /* the last mark */
    BY_OPERATION = 16, /* from here on, calls by operation */
    PATH_AT = 1024, /* bytes: from here on, the path of the call that was hit last */
    STATE_BYTES = 4096
};

enum operation {
    OP_WRITE = 1,
    OP_SYNC,
    OP_RENAME,
    OP_TRUNCATE, /* or allocate */
    OP_CREATE,   /* an open that makes a file or empties one */
    OP_UNLINK,
    OP_MKDIR,
    OP_RMDIR,
    OP_LINK,
    OP_MARK
};

enum action {
    NOTHING,
    KILL_BEFORE,
    KILL_AFTER,
    TEAR, /* the first half of a write, then as KILL_AFTER */
    FAIL_EIO,
    FAIL_ENOSPC,
    FAIL_EINTR,
    SHORT_WRITE, /* half of a write, and say so */
    LIE,         /* a sync that does nothing and succeeds */
    STOP         /* SIGSTOP, and the call once it is continued */
};

enum flag {
    FLAG_DURABLE = 1,   /* the descriptor is O_DSYNC or O_SYNC */
    FLAG_DATA_ONLY = 2, /* the sync was an fdatasync */
    FLAG_DIRECTORY = 4, /* the entry concerns a directory */
    FLAG_TRUNCATE = 8,  /* the open was O_TRUNC */
    FLAG_EXCHANGE = 16  /* the rename let two names trade places */
};

struct header {
    uint32_t operation, flags, path_bytes, target_bytes;
    int64_t offset; /* of a write, or the new length */
    int64_t result;
    uint64_t data_bytes;
};

struct call {
    struct header header;
    const struct iovec *data;
    int data_count;
    bool unrecorded; /* it succeeds without doing what an entry would say */
    char path[PATH_MAX], target[PATH_MAX];
};

#define VECTORS_MAX 1020 /* the kernel takes 1,024 at once; an entry needs three of its own */

static char root[PATH_MAX], trace[PATH_MAX];
static size_t root_bytes; /* 0: nothing is counted */
static uint64_t *state;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* held over a call and its entry */

/* Configuration */

EXPORTED void interposer_attach(const char *root_path, const char *state_path,
                                const char *trace_path)
{
    root_bytes = 0;
    if (!root_path || !state_path)
        return;
    int file = syscall(SYS_openat, AT_FDCWD, state_path, O_RDWR | O_CLOEXEC, 0);
    void *mapped = mmap(NULL, STATE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (file < 0 || mapped == MAP_FAILED) {
        perror("interposer: the state file");
        abort();
    }
    close(file);
    if (state)
        munmap(state, STATE_BYTES);
    state = mapped;
    snprintf(trace, sizeof trace, "%s", trace_path ? trace_path : "");
    if (!realpath(root_path, root))
        snprintf(root, sizeof root, "%s", root_path);
    root_bytes = strlen(root);
}

static void lock_order(void) { pthread_mutex_lock(&order); }
static void unlock_order(void) { pthread_mutex_unlock(&order); }

__attribute__((constructor)) static void begin_process(void)
{
    pthread_atfork(lock_order, unlock_order, unlock_order);
    interposer_attach(getenv("INTERPOSER_ROOT"), getenv("INTERPOSER_STATE"),
                      getenv("INTERPOSER_TRACE"));
}

/* Which files */

static bool is_counted(const char *path)
{
    return strncmp(path, root, root_bytes) == 0
        && (path[root_bytes] == '/' || path[root_bytes] == '\0');
}

/* Find the path of a descriptor as it is now; tell whether it has one. */
static bool path_of(int descriptor, char *path)
{
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t bytes = syscall(SYS_readlinkat, AT_FDCWD, name, path, PATH_MAX - 1);
    if (bytes < 0)
        return false;
    path[bytes] = '\0';
    return path[0] == '/';
}

/* Fill in the call's path from a descriptor; tell whether it counts. */
static bool concerns(struct call *call, int descriptor)
{
    static const char gone[] = " (deleted)";
    int error = errno;
    bool counted = root_bytes && path_of(descriptor, call->path) && is_counted(call->path);
    if (counted) {
        size_t bytes = strlen(call->path);
        size_t suffix = sizeof gone - 1;
        counted = bytes < suffix || strcmp(call->path + bytes - suffix, gone) != 0;
    }
    if (counted) {
        struct stat found;
        if (fcntl(descriptor, F_GETFL) & (O_DSYNC | O_SYNC))
            call->header.flags |= FLAG_DURABLE;
        if (fstat(descriptor, &found) == 0 && S_ISDIR(found.st_mode))
            call->header.flags |= FLAG_DIRECTORY;
    }
    errno = error;
    return counted;
}

/* Find the absolute path of a name, its directory free of links; tell whether it counts. */
static bool resolve(int directory, const char *name, char *path)
{
    int error = errno;
    char parent[PATH_MAX];
    size_t end = name ? strlen(name) : 0;
    bool counted = false;
    while (end > 1 && name[end - 1] == '/')
        end--;
    if (root_bytes && end && end < PATH_MAX) {
        size_t base = end;
        while (base && name[base - 1] != '/')
            base--;
        memcpy(parent, name, base);
        strcpy(parent + base, base ? "" : ".");
        int opened = syscall(SYS_openat, directory, parent, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
        if (opened >= 0) {
            if (path_of(opened, path) && strlen(path) + 1 + end - base < PATH_MAX) {
                size_t bytes = strlen(path);
                if (path[bytes - 1] != '/')
                    path[bytes++] = '/';
                memcpy(path + bytes, name + base, end - base);
                path[bytes + end - base] = '\0';
                counted = is_counted(path);
            }
            syscall(SYS_close, opened);
        }
    }
    errno = error;
    return counted;
}

static bool is_directory(const char *path)
{
    int error = errno;
    struct stat found;
    bool answer = lstat(path, &found) == 0 && S_ISDIR(found.st_mode);
    errno = error;
    return answer;
}

/* Counting, faults, trace */

static void signal_self(int number)
{
    syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}

static _Noreturn void die(void)
{
    for (;;)
        signal_self(SIGKILL);
}

static uint64_t count(int word)
{
    return __atomic_add_fetch(&state[word], 1, __ATOMIC_SEQ_CST);
}

static uint64_t word(int index)
{
    return __atomic_load_n(&state[index], __ATOMIC_SEQ_CST);
}

/* Count a call and return what is to become of it. */
static enum action begin(const struct call *call)
{
    enum operation operation = call->header.operation;
    enum action action = NOTHING;
    uint64_t mask = word(MASK);
    count(CALLS);
    count(BY_OPERATION + operation);
    if (!mask || (mask >> operation & 1)) {
        uint64_t number = count(ELIGIBLE), fire_at = word(FIRE_AT), times = word(TIMES);
        if (fire_at && number >= fire_at && (!times || number - fire_at < times)) {
            action = word(ACTION);
            __atomic_store_n(&state[LAST_HIT], operation, __ATOMIC_SEQ_CST);
            snprintf((char *)state + PATH_AT, STATE_BYTES - PATH_AT, "%.*s",
                     STATE_BYTES - PATH_AT - 1, call->path);
            count(FIRED);
        }
    }
    if (action == KILL_BEFORE)
        die();
    if (action == STOP)
        signal_self(SIGSTOP); /* before the lock, which a forked process may wait for */
    if (trace[0])
        lock_order();
    return action;
}

/* Tell whether the call is to fail without being made, and set errno. */
static bool fails(enum action action)
{
    static const int errors[] = {[FAIL_EIO] = EIO, [FAIL_ENOSPC] = ENOSPC, [FAIL_EINTR] = EINTR};
    if (action < FAIL_EIO || action > FAIL_EINTR)
        return false;
    errno = errors[action];
    return true;
}

static void record(struct call *call)
{
    struct iovec parts[VECTORS_MAX + 3];
    struct header *header = &call->header;
    header->path_bytes = strlen(call->path);
    header->target_bytes = strlen(call->target);
    parts[0] = (struct iovec){header, sizeof *header};
    parts[1] = (struct iovec){call->path, header->path_bytes};
    parts[2] = (struct iovec){call->target, header->target_bytes};
    int parts_count = 3;
    uint64_t left = header->data_bytes;
    for (int index = 0; left && index < call->data_count; index++) {
        struct iovec part = call->data[index];
        if (part.iov_len > left)
            part.iov_len = left;
        left -= part.iov_len;
        parts[parts_count++] = part;
    }
    int flags = O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC;
    int file = syscall(SYS_openat, AT_FDCWD, trace, flags, 0644);
    ssize_t bytes = sizeof *header + header->path_bytes + header->target_bytes + header->data_bytes;
    if (file < 0 || syscall(SYS_writev, file, parts, parts_count) != bytes) {
        perror("interposer: the trace");
        abort();
    }
    syscall(SYS_close, file);
}

/* Record a call that was made and carry out what was to follow; return its result. */
static long end(struct call *call, enum action action, long result)
{
    int error = errno;
    if (trace[0]) {
        call->header.result = result;
        if (result >= 0 && !call->unrecorded)
            record(call);
        unlock_order();
    }
    if (action == KILL_AFTER || action == TEAR)
        die();
    errno = error;
    return result;
}

/* Make a call, counted and with whatever fault is armed for it. */
#define MAKE(call, made)                                                                           \
    ({                                                                                             \
        enum action action_ = begin(call);                                     \
        end((call), action_, fails(action_) ? -1 : (long)(made));                                  \
    })

EXPORTED void interposer_mark(uint64_t number)
{
    struct call call = {.header = {.operation = OP_MARK, .data_bytes = sizeof number}};
    struct iovec data = {&number, sizeof number};
    call.data = &data;
    call.data_count = 1;
    if (!root_bytes)
        return;
    __atomic_store_n(&state[MARK], number, __ATOMIC_SEQ_CST);
    count(BY_OPERATION + OP_MARK);
    if (trace[0]) {
        lock_order();
        record(&call);
        unlock_order();
    }
}

/* Writes */

/* Copy the vectors that hold the first `bytes` bytes; return how many there are. */
static int cut(struct iovec *some, const struct iovec *vectors, int vector_count, size_t bytes)
{
    int taken = 0;
    for (; taken < vector_count && bytes; taken++) {
        some[taken] = vectors[taken];
        if (some[taken].iov_len > bytes)
            some[taken].iov_len = bytes;
        bytes -= some[taken].iov_len;
    }
    return taken;
}

static ssize_t make_write(int descriptor, const struct iovec *vectors, int vector_count,
                          off_t offset, int flags)
{
    if (offset < 0 && !flags) /* at the descriptor's position */
        return syscall(SYS_writev, descriptor, vectors, vector_count);
    return syscall(SYS_pwritev2, descriptor, vectors, vector_count, offset, 0, flags);
}

static off_t place_of(int descriptor, off_t offset, bool appends)
{
    struct stat found;
    appends = appends || (fcntl(descriptor, F_GETFL) & O_APPEND);
    if (appends && fstat(descriptor, &found) == 0)
        return found.st_size;
    return offset < 0 ? lseek(descriptor, 0, SEEK_CUR) : offset;
}

static ssize_t write_some(int descriptor, const struct iovec *vectors, int vector_count,
                          off_t offset, int flags)
{
    struct call call = {.header = {.operation = OP_WRITE}, .data = vectors};
    struct iovec some[VECTORS_MAX];
    if (vector_count < 0 || vector_count > VECTORS_MAX || !concerns(&call, descriptor))
        return make_write(descriptor, vectors, vector_count, offset, flags);
    if (flags & (RWF_DSYNC | RWF_SYNC))
        call.header.flags |= FLAG_DURABLE;
    enum action action = begin(&call);
    if (fails(action))
        return end(&call, action, -1);
    if (action == TEAR || action == SHORT_WRITE) {
        size_t bytes = 0;
        for (int index = 0; index < vector_count; index++)
            bytes += vectors[index].iov_len;
        /* A write of one byte cannot be short, but it can be torn. */
        vector_count = cut(some, vectors, vector_count, (bytes + (action == SHORT_WRITE)) / 2);
        vectors = some;
    }
    call.data = vectors;
    call.data_count = vector_count;
    call.header.offset = place_of(descriptor, offset, flags & RWF_APPEND);
    ssize_t written = make_write(descriptor, vectors, vector_count, offset, flags);
    call.header.data_bytes = written > 0 ? written : 0;
    return end(&call, action, written);
}

EXPORTED ssize_t write(int descriptor, const void *data, size_t bytes)
{
    struct iovec vector = {(void *)data, bytes};
    return write_some(descriptor, &vector, 1, -1, 0);
}

EXPORTED ssize_t pwrite(int descriptor, const void *data, size_t bytes, off_t offset)
{
    struct iovec vector = {(void *)data, bytes};
    return write_some(descriptor, &vector, 1, offset, 0);
}

EXPORTED ssize_t pwrite64(int descriptor, const void *data, size_t bytes, off64_t offset)
{
    return pwrite(descriptor, data, bytes, offset);
}

EXPORTED ssize_t writev(int descriptor, const struct iovec *vectors, int vector_count)
{
    return write_some(descriptor, vectors, vector_count, -1, 0);
}

EXPORTED ssize_t pwritev(int descriptor, const struct iovec *vectors, int vector_count,
                         off_t offset)
{
    return write_some(descriptor, vectors, vector_count, offset, 0);
}

EXPORTED ssize_t pwritev64(int descriptor, const struct iovec *vectors, int vector_count,
                           off64_t offset)
{
    return write_some(descriptor, vectors, vector_count, offset, 0);
}

EXPORTED ssize_t pwritev2(int descriptor, const struct iovec *vectors, int vector_count,
                          off_t offset, int flags)
{
    return write_some(descriptor, vectors, vector_count, offset, flags);
}

EXPORTED ssize_t pwritev64v2(int descriptor, const struct iovec *vectors, int vector_count,
                             off64_t offset, int flags)
{
    return write_some(descriptor, vectors, vector_count, offset, flags);
}

/* Read back what the kernel copied, for the trace; the descriptor may be open for writing only. */
static void *read_back(int descriptor, off_t offset, size_t bytes)
{
    char name[32];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    void *data = malloc(bytes);
    int file = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
    if (!data || file < 0 || pread(file, data, bytes, offset) != (ssize_t)bytes) {
        perror("interposer: what was copied");
        abort();
    }
    syscall(SYS_close, file);
    return data;
}

static ssize_t copy_some(long number, int target, long second, long third, long fourth,
                         size_t bytes, long sixth)
{
    bool sends = number == SYS_sendfile;
    struct call call = {.header = {.operation = OP_WRITE}};
    bool counted = concerns(&call, target);
    enum action action = counted ? begin(&call) : NOTHING;
    if (fails(action))
        return end(&call, action, -1);
    if (action == TEAR || action == SHORT_WRITE)
        bytes = (bytes + 1) / 2;
    off_t *own_offset = sends ? NULL : (off_t *)fourth;
    off_t offset = counted ? place_of(target, own_offset ? *own_offset : -1, false) : 0;
    ssize_t copied = sends ? syscall(number, target, second, third, bytes)
                           : syscall(number, second, third, target, fourth, bytes, sixth);
    if (!counted)
        return copied;
    struct iovec data = {NULL, copied > 0 ? copied : 0};
    if (trace[0] && copied > 0)
        data.iov_base = read_back(target, offset, copied);
    call.data = &data;
    call.data_count = 1;
    call.header.offset = offset;
    call.header.data_bytes = data.iov_len;
    ssize_t result = end(&call, action, copied);
    free(data.iov_base);
    return result;
}

EXPORTED ssize_t sendfile(int target, int source, off_t *offset, size_t bytes)
{
    return copy_some(SYS_sendfile, target, source, (long)offset, 0, bytes, 0);
}

EXPORTED ssize_t sendfile64(int target, int source, off64_t *offset, size_t bytes)
{
    return sendfile(target, source, offset, bytes);
}

EXPORTED ssize_t copy_file_range(int source, off64_t *source_offset, int target,
                                 off64_t *target_offset, size_t bytes, unsigned int flags)
{
    return copy_some(SYS_copy_file_range, target, source, (long)source_offset, (long)target_offset,
                     bytes, flags);
}

/* Syncs */

static int sync_descriptor(long number, int descriptor, uint32_t flags)
{
    struct call call = {.header = {.operation = OP_SYNC, .flags = flags}};
    if (!concerns(&call, descriptor))
        return syscall(number, descriptor);
    enum action action = begin(&call);
    call.unrecorded = action == LIE;
    return end(&call, action, fails(action) ? -1 : action == LIE ? 0 : syscall(number, descriptor));
}

EXPORTED int fsync(int descriptor) { return sync_descriptor(SYS_fsync, descriptor, 0); }

EXPORTED int fdatasync(int descriptor)
{
    return sync_descriptor(SYS_fdatasync, descriptor, FLAG_DATA_ONLY);
}

/* It promises nothing durable: counted and made to fail like a sync, but not recorded as one. */
EXPORTED int sync_file_range(int descriptor, off64_t offset, off64_t bytes, unsigned int flags)
{
    struct call call = {.header = {.operation = OP_SYNC}, .unrecorded = true};
    if (!concerns(&call, descriptor))
        return syscall(SYS_sync_file_range, descriptor, offset, bytes, flags);
    return MAKE(&call, syscall(SYS_sync_file_range, descriptor, offset, bytes, flags));
}

/* Find the file that an address is mapped from. */
static bool mapped_path(const void *address, char *path)
{
    char line[PATH_MAX + 128];
    bool found = false;
    FILE *maps = fopen("/proc/self/maps", "re");
    while (maps && !found && fgets(line, sizeof line, maps)) {
        unsigned long first, after;
        int name = 0;
        line[strcspn(line, "\n")] = '\0';
        if (sscanf(line, "%lx-%lx %*s %*s %*s %*s %n", &first, &after, &name) == 2 && name
            && (unsigned long)address >= first && (unsigned long)address < after) {
            snprintf(path, PATH_MAX, "%s", line + name);
            found = true;
        }
    }
    if (maps)
        fclose(maps);
    return found;
}

EXPORTED int msync(void *address, size_t bytes, int flags)
{
    struct call call = {.header = {.operation = OP_SYNC}};
    if (!root_bytes || !(flags & MS_SYNC) || !mapped_path(address, call.path)
        || !is_counted(call.path))
        return syscall(SYS_msync, address, bytes, flags);
    return MAKE(&call, syscall(SYS_msync, address, bytes, flags));
}

/* Lengths */

static long resize(struct call *call, int descriptor, long number, long second, long third,
                   long fourth)
{
    enum action action = begin(call);
    long result = fails(action) ? -1 : syscall(number, descriptor, second, third, fourth);
    struct stat found;
    if (result >= 0 && fstat(descriptor, &found) == 0)
        call->header.offset = found.st_size;
    return end(call, action, result);
}

EXPORTED int ftruncate(int descriptor, off_t bytes)
{
    struct call call = {.header = {.operation = OP_TRUNCATE}};
    if (!concerns(&call, descriptor))
        return syscall(SYS_ftruncate, descriptor, bytes);
    return resize(&call, descriptor, SYS_ftruncate, bytes, 0, 0);
}

EXPORTED int ftruncate64(int descriptor, off64_t bytes) { return ftruncate(descriptor, bytes); }

EXPORTED int truncate(const char *name, off_t bytes)
{
    struct call call = {.header = {.operation = OP_TRUNCATE, .offset = bytes}};
    if (!resolve(AT_FDCWD, name, call.path))
        return syscall(SYS_truncate, name, bytes);
    return MAKE(&call, syscall(SYS_truncate, name, bytes));
}

EXPORTED int truncate64(const char *name, off64_t bytes) { return truncate(name, bytes); }

EXPORTED int fallocate(int descriptor, int mode, off_t offset, off_t bytes)
{
    struct call call = {.header = {.operation = OP_TRUNCATE}};
    if (!concerns(&call, descriptor))
        return syscall(SYS_fallocate, descriptor, mode, offset, bytes);
    return resize(&call, descriptor, SYS_fallocate, mode, offset, bytes);
}

EXPORTED int fallocate64(int descriptor, int mode, off64_t offset, off64_t bytes)
{
    return fallocate(descriptor, mode, offset, bytes);
}

/* It answers with the error instead of setting errno. */
EXPORTED int posix_fallocate(int descriptor, off_t offset, off_t bytes)
{
    int before = errno;
    int error = fallocate(descriptor, 0, offset, bytes) ? errno : 0;
    errno = before;
    return error;
}

EXPORTED int posix_fallocate64(int descriptor, off64_t offset, off64_t bytes)
{
    return posix_fallocate(descriptor, offset, bytes);
}

/* Names */

static int open_some(int directory, const char *name, int flags, mode_t mode)
{
    struct call call = {.header = {.operation = OP_CREATE}};
    struct stat found;
    bool changes = (flags & (O_CREAT | O_TRUNC)) && resolve(directory, name, call.path);
    if (changes) {
        int error = errno;
        bool exists = lstat(call.path, &found) == 0;
        errno = error;
        changes = exists ? (flags & O_TRUNC) : (flags & O_CREAT);
    }
    if (!changes)
        return syscall(SYS_openat, directory, name, flags, mode);
    if (flags & O_TRUNC)
        call.header.flags |= FLAG_TRUNCATE;
    if (flags & (O_DSYNC | O_SYNC))
        call.header.flags |= FLAG_DURABLE;
    return MAKE(&call, syscall(SYS_openat, directory, name, flags, mode));
}

#define MODE(flags)                                                                                \
    ({                                                                                             \
        mode_t mode_ = 0;                                                                          \
        if (((flags) & O_CREAT) || ((flags) & O_TMPFILE) == O_TMPFILE) {                           \
            va_list list;                                                                          \
            va_start(list, flags);                                                                 \
            mode_ = va_arg(list, mode_t);                                                          \
            va_end(list);                                                                          \
        }                                                                                          \
        mode_;                                                                                     \
    })

EXPORTED int open(const char *name, int flags, ...)
{
    return open_some(AT_FDCWD, name, flags, MODE(flags));
}

EXPORTED int open64(const char *name, int flags, ...)
{
    return open_some(AT_FDCWD, name, flags, MODE(flags));
}

EXPORTED int openat(int directory, const char *name, int flags, ...)
{
    return open_some(directory, name, flags, MODE(flags));
}

EXPORTED int openat64(int directory, const char *name, int flags, ...)
{
    return open_some(directory, name, flags, MODE(flags));
}

EXPORTED int renameat2(int directory, const char *name, int target_directory, const char *target,
                       unsigned int flags)
{
    struct call call = {.header = {.operation = OP_RENAME}};
    bool counted = resolve(directory, name, call.path);
    if (!(resolve(target_directory, target, call.target) || counted))
        return syscall(SYS_renameat2, directory, name, target_directory, target, flags);
    if (is_directory(call.path))
        call.header.flags |= FLAG_DIRECTORY;
    if (flags & RENAME_EXCHANGE)
        call.header.flags |= FLAG_EXCHANGE;
    return MAKE(&call, syscall(SYS_renameat2, directory, name, target_directory, target, flags));
}

EXPORTED int renameat(int directory, const char *name, int target_directory, const char *target)
{
    return renameat2(directory, name, target_directory, target, 0);
}

EXPORTED int rename(const char *name, const char *target)
{
    return renameat2(AT_FDCWD, name, AT_FDCWD, target, 0);
}

EXPORTED int linkat(int directory, const char *name, int target_directory, const char *target,
                    int flags)
{
    struct call call = {.header = {.operation = OP_LINK}};
    bool counted = resolve(directory, name, call.path);
    if (!(resolve(target_directory, target, call.target) || counted))
        return syscall(SYS_linkat, directory, name, target_directory, target, flags);
    return MAKE(&call, syscall(SYS_linkat, directory, name, target_directory, target, flags));
}

EXPORTED int link(const char *name, const char *target)
{
    return linkat(AT_FDCWD, name, AT_FDCWD, target, 0);
}

EXPORTED int unlinkat(int directory, const char *name, int flags)
{
    bool removes_directory = flags & AT_REMOVEDIR;
    struct call call = {.header = {.operation = removes_directory ? OP_RMDIR : OP_UNLINK,
                                   .flags = removes_directory ? FLAG_DIRECTORY : 0}};
    if (!resolve(directory, name, call.path))
        return syscall(SYS_unlinkat, directory, name, flags);
    return MAKE(&call, syscall(SYS_unlinkat, directory, name, flags));
}

EXPORTED int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

EXPORTED int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

EXPORTED int mkdirat(int directory, const char *name, mode_t mode)
{
    struct call call = {.header = {.operation = OP_MKDIR, .flags = FLAG_DIRECTORY}};
    if (!resolve(directory, name, call.path))
        return syscall(SYS_mkdirat, directory, name, mode);
    return MAKE(&call, syscall(SYS_mkdirat, directory, name, mode));
}

EXPORTED int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
