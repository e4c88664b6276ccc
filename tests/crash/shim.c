/* What a process does to the files below one directory: written down in order, and failed on demand.

   Preloaded into a child. SHIM_ROOT is the directory, SHIM_RECORD the file to append events to.
   SHIM_FAULT "kind:k:what" spoils the k-th call of a kind: what is EIO, ENOSPC, short (half of it
   is written, and no error) or kill (it is done, and the process dies before it is durable).
   A write to the descriptor MARK_FD is no write: it is a mark, something the child has promised.

   An event is a head and then its bytes; the lock is held over the call and its event, so their
   order is the order in which things happened. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define MARK_FD 987
#define FDS 4096
#define EXPORT __attribute__((visibility("default")))

struct head {
    uint8_t kind;     /* the letter of the event */
    uint8_t durable;  /* of a write: through a descriptor opened with O_DSYNC */
    uint8_t failed;   /* the fault was put here */
    uint8_t call;     /* of a write: p pwrite, v writev, w write, m through O_DSYNC; t ftruncate */
    uint32_t size;    /* bytes that follow */
    uint64_t inode;
    int64_t offset;
};

static char root[PATH_MAX], fault_kind[32], fault_what[16];
static size_t root_size;
static long fault_at;
static int record = -1;
static struct { uint64_t inode; uint8_t dsync, directory; } tracked[FDS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    void *found = dlsym(RTLD_NEXT, name);
    if (found == NULL) abort();
    return found;
}

static void put(const void *data, size_t size) {
    const char *at = data;
    while (size > 0) {
        ssize_t done = syscall(SYS_write, record, at, size);
        if (done <= 0) abort(); /* a record with a hole proves nothing */
        at += done;
        size -= (size_t)done;
    }
}

static void event_of(char kind, char call, uint64_t inode, int64_t offset, int durable, int failed,
                     const void *data, size_t size) {
    if (record < 0) return;
    int kept = errno;
    struct head head = {(uint8_t)kind, (uint8_t)durable, (uint8_t)failed, (uint8_t)call,
                        (uint32_t)size, inode, offset};
    struct iovec parts[2] = {{&head, sizeof head}, {(void *)data, size}};
    if (size > 4096) {
        put(&head, sizeof head);
        put(data, size);
    } else if (syscall(SYS_writev, record, parts, 2) != (long)(sizeof head + size)) {
        abort();
    }
    errno = kept;
}

static void event(char kind, uint64_t inode, int64_t offset, int durable, int failed,
                  const void *data, size_t size) {
    event_of(kind, 0, inode, offset, durable, failed, data, size);
}

__attribute__((constructor)) static void begin(void) {
    const char *where = getenv("SHIM_ROOT"), *file = getenv("SHIM_RECORD");
    const char *fault = getenv("SHIM_FAULT");
    if (where == NULL) return;
    root_size = strlen(where);
    if (root_size >= sizeof root) abort();
    memcpy(root, where, root_size + 1);
    if (file != NULL) {
        int low = (int)syscall(SYS_openat, AT_FDCWD, file,
                               O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
        record = fcntl(low, F_DUPFD_CLOEXEC, 900); /* out of the way of everyone's numbers */
        syscall(SYS_close, low);
        if (record < 0) abort();
    }
    if (fault != NULL && sscanf(fault, "%31[^:]:%ld:%15s", fault_kind, &fault_at, fault_what) != 3)
        abort();
}

/* Whether this call is the one to spoil: 0, an errno, or one of the two below. */
enum { SHORT = -1, KILL = -2 };

static int spoiled(const char *kind) {
    if (fault_at == 0 || strcmp(kind, fault_kind) != 0 || --fault_at > 0) return 0;
    if (strcmp(fault_what, "EIO") == 0) return EIO;
    if (strcmp(fault_what, "ENOSPC") == 0) return ENOSPC;
    if (strcmp(fault_what, "short") == 0) return SHORT;
    if (strcmp(fault_what, "kill") == 0) return KILL;
    abort();
}

static void die(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static int ours(const char *path) {
    return root_size > 0 && strncmp(path, root, root_size) == 0 &&
           (path[root_size] == '/' || path[root_size] == '\0');
}

/* The whole path of what a call names; NULL if it lies elsewhere. */
static const char *whole(int base, const char *path, char *buffer) {
    if (path[0] != '/') {
        char link[64];
        if (base == AT_FDCWD) return NULL;
        snprintf(link, sizeof link, "/proc/self/fd/%d", base);
        ssize_t size = readlink(link, buffer, PATH_MAX - 1);
        if (size < 0 || size + 1 + strlen(path) >= PATH_MAX) return NULL;
        buffer[size] = '/';
        strcpy(buffer + size + 1, path);
        path = buffer;
    }
    return ours(path) ? path : NULL;
}

static int is_ours(int fd) { return fd >= 0 && fd < FDS && tracked[fd].inode != 0; }

static const char *relative(const char *path) { return path + root_size + 1; }

/* Opening. */

static int opened(int base, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    struct stat found;
    const char *name = whole(base, path, buffer);
    if (name == NULL) {
        int fd = (int)syscall(SYS_openat, base, path, flags, mode);
        if (fd >= 0 && fd < FDS) tracked[fd].inode = 0;
        return fd;
    }
    pthread_mutex_lock(&lock);
    int made = (flags & O_CREAT) && syscall(SYS_newfstatat, AT_FDCWD, name, &found, 0) != 0;
    int error = made ? spoiled("create") : 0;
    int fd = -1;
    if (error > 0) {
        event('!', 0, 0, 0, 1, relative(name), strlen(relative(name)));
        errno = error;
    } else {
        fd = (int)syscall(SYS_openat, AT_FDCWD, name, flags, mode);
    }
    if (fd >= FDS) abort();
    if (fd >= 0) {
        if (syscall(SYS_fstat, fd, &found) != 0) abort();
        tracked[fd].inode = found.st_ino;
        tracked[fd].dsync = (flags & O_DSYNC) != 0;
        tracked[fd].directory = S_ISDIR(found.st_mode);
        if (made) event('C', found.st_ino, 0, 0, 0, relative(name), strlen(relative(name)));
        else if (flags & O_TRUNC) event('T', found.st_ino, 0, 0, 0, NULL, 0);
        if (error == KILL) die();
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

#define MODE                                  \
    mode_t mode = 0;                          \
    if (flags & (O_CREAT | __O_TMPFILE)) {    \
        va_list rest;                         \
        va_start(rest, flags);                \
        mode = va_arg(rest, mode_t);          \
        va_end(rest);                         \
    }

EXPORT int open(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
EXPORT int open64(const char *path, int flags, ...) { MODE return opened(AT_FDCWD, path, flags, mode); }
EXPORT int openat(int base, const char *path, int flags, ...) { MODE return opened(base, path, flags, mode); }
EXPORT int openat64(int base, const char *path, int flags, ...) { MODE return opened(base, path, flags, mode); }

EXPORT int close(int fd) {
    if (fd == record && record >= 0) return 0;
    if (fd >= 0 && fd < FDS) tracked[fd].inode = 0;
    return (int)syscall(SYS_close, fd);
}

/* Writing. `parts` are written at `offset`, or where the descriptor stands. */

static ssize_t written(const char *kind, int fd, const struct iovec *parts, int count,
                       int64_t offset) {
    size_t size = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *all = malloc(size + 1);
    if (all == NULL) abort();
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        memcpy(all + at, parts[i].iov_base, parts[i].iov_len);
        at += parts[i].iov_len;
    }
    pthread_mutex_lock(&lock);
    int durable = tracked[fd].dsync;
    int positioned = offset >= 0;
    if (!positioned) offset = syscall(SYS_lseek, fd, 0, SEEK_CUR);
    int error = spoiled(durable ? "meta" : kind);
    ssize_t done = -1;
    if (error > 0) {
        event('!', tracked[fd].inode, offset, durable, 1, kind, strlen(kind));
        errno = error;
    } else {
        size_t wanted = error == SHORT ? size / 2 : size;
        done = positioned ? syscall(SYS_pwrite64, fd, all, wanted, offset)
                          : syscall(SYS_write, fd, all, wanted);
        if (done > 0)
            event_of('W', durable ? 'm' : kind[0] == 'p' ? 'p' : kind[5] == 'v' ? 'v' : 'w',
                     tracked[fd].inode, offset, durable && error != KILL, error != 0, all,
                     (size_t)done);
        if (error == KILL) die();
    }
    pthread_mutex_unlock(&lock);
    free(all);
    return done;
}

EXPORT ssize_t write(int fd, const void *data, size_t size) {
    if (fd == MARK_FD) {
        pthread_mutex_lock(&lock);
        event('M', 0, 0, 0, 0, data, size);
        pthread_mutex_unlock(&lock);
        return (ssize_t)size;
    }
    if (!is_ours(fd)) return syscall(SYS_write, fd, data, size);
    struct iovec one = {(void *)data, size};
    return written("write", fd, &one, 1, -1);
}

EXPORT ssize_t writev(int fd, const struct iovec *parts, int count) {
    if (!is_ours(fd)) return syscall(SYS_writev, fd, parts, count);
    return written("writev", fd, parts, count, -1);
}

EXPORT ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) {
    if (!is_ours(fd)) return syscall(SYS_pwrite64, fd, data, size, offset);
    struct iovec one = {(void *)data, size};
    return written("pwrite", fd, &one, 1, offset);
}

EXPORT ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) {
    return pwrite(fd, data, size, offset);
}

EXPORT ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t offset) {
    if (!is_ours(fd)) return REAL(pwritev)(fd, parts, count, offset);
    return written("pwritev", fd, parts, count, offset);
}

EXPORT ssize_t pwritev64(int fd, const struct iovec *parts, int count, off64_t offset) {
    return pwritev(fd, parts, count, offset);
}

EXPORT int ftruncate(int fd, off_t size) {
    if (!is_ours(fd)) return (int)syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int error = spoiled("ftruncate"), done = -1;
    if (error > 0) {
        event('!', tracked[fd].inode, 0, 0, 1, "ftruncate", 9);
        errno = error;
    } else {
        done = (int)syscall(SYS_ftruncate, fd, size);
        if (done == 0) event_of('T', 't', tracked[fd].inode, size, 0, error != 0, NULL, 0);
        if (error == KILL) die();
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* Syncing: what fails or is killed has made nothing durable. */

static int synced(const char *kind, int number, int fd) {
    if (!is_ours(fd)) return (int)syscall(number, fd);
    pthread_mutex_lock(&lock);
    if (tracked[fd].directory) kind = "fsyncdir";
    int error = spoiled(kind), done = -1;
    if (error == KILL) die();
    if (error != 0) {
        event('!', tracked[fd].inode, 0, 0, 1, kind, strlen(kind));
        errno = error > 0 ? error : EIO;
    } else {
        done = (int)syscall(number, fd);
        if (done == 0) event('S', tracked[fd].inode, 0, 0, 0, kind, strlen(kind));
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int fsync(int fd) { return synced("fsync", SYS_fsync, fd); }
EXPORT int fdatasync(int fd) { return synced("fdatasync", SYS_fdatasync, fd); }

EXPORT int msync(void *at, size_t size, int flags) {
    pthread_mutex_lock(&lock);
    int error = spoiled("msync"), done = -1;
    if (error == KILL) die();
    if (error != 0) errno = error > 0 ? error : EIO;
    else done = (int)syscall(SYS_msync, at, size, flags);
    event('Y', 0, flags & MS_SYNC ? 1 : 0, 0, error != 0, NULL, 0);
    pthread_mutex_unlock(&lock);
    return done;
}

/* Names. */

static int named(const char *kind, char letter, int number, int base, const char *path, long extra) {
    char buffer[PATH_MAX];
    struct stat found = {0};
    const char *name = whole(base, path, buffer);
    if (name == NULL) return (int)syscall(number, base, path, extra);
    pthread_mutex_lock(&lock);
    int error = spoiled(kind), done = -1;
    if (error > 0) {
        event('!', 0, 0, 0, 1, relative(name), strlen(relative(name)));
        errno = error;
    } else {
        done = (int)syscall(number, AT_FDCWD, name, extra);
        if (done == 0 && letter == 'D') syscall(SYS_newfstatat, AT_FDCWD, name, &found, 0);
        if (done == 0)
            event(letter, found.st_ino, 0, 0, 0, relative(name), strlen(relative(name)));
        if (error == KILL) die();
    }
    pthread_mutex_unlock(&lock);
    return done;
}

EXPORT int mkdirat(int base, const char *path, mode_t mode) {
    return named("mkdir", 'D', SYS_mkdirat, base, path, (long)mode);
}
EXPORT int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
EXPORT int unlinkat(int base, const char *path, int flags) {
    return named("unlink", 'U', SYS_unlinkat, base, path, (long)flags);
}
EXPORT int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
EXPORT int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

EXPORT int renameat(int base, const char *from, int base_to, const char *to) {
    char first[PATH_MAX], second[PATH_MAX], both[2 * PATH_MAX];
    const char *source = whole(base, from, first), *target = whole(base_to, to, second);
    if (source == NULL || target == NULL)
        return (int)syscall(SYS_renameat, base, from, base_to, to);
    int size = snprintf(both, sizeof both, "%s%c%s", relative(source), '\n', relative(target));
    pthread_mutex_lock(&lock);
    int error = spoiled("rename"), done = -1;
    if (error > 0) {
        event('!', 0, 0, 0, 1, both, (size_t)size);
        errno = error;
    } else {
        done = (int)syscall(SYS_renameat, AT_FDCWD, source, AT_FDCWD, target);
        if (done == 0) event('R', 0, 0, 0, 0, both, (size_t)size);
        if (error == KILL) die();
    }
    pthread_mutex_unlock(&lock);
    return done;
}
EXPORT int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }
