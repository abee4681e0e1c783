/* A disk that can be slow, full or broken, or lose power, for one server process: loaded with LD_PRELOAD (see disk.py).
 *
 * What the server does in its data folder goes on as it would. Beside it a journal notes what is on stable storage:
 *
 *   S ino size offset   the file was synced when it had this length and its descriptor this offset
 *   T ino size          the file was made shorter
 *   C path, M path      a file, a folder was created
 *   L path              a hard link was made
 *   R from to kept      renamed; what had the new name before is kept under the third
 *   U path kept         unlinked; the file is kept
 *   K path              a folder was removed
 *   D path length       the folder was synced: what the journal had up to this length lasts
 *
 * A line that undoes something is written before it is done, any other one after it; a sync counts when it has succeeded, for
 * what was there when it began. The process may be killed at any moment.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define LINE (3 * PATH_BYTES)
#define PATH_BYTES 4096

/* Changed by the test while the server runs. */
struct control {
    volatile uint32_t sync_millis;
    /* Nothing that takes more space succeeds. */
    volatile uint32_t full;
    /* No sync of a file succeeds. */
    volatile uint32_t broken;
};

static char root[PATH_BYTES], side[PATH_BYTES - 64];
static size_t root_length;
static int journal = -1;
static struct control *control;
static unsigned kept_files;

__attribute__((constructor)) static void begin(void) {
    const char *folder = getenv("DISK_FAULTS_ROOT"), *beside = getenv("DISK_FAULTS_SIDE");
    if (!folder || !beside || strlen(beside) >= sizeof side) return;
    snprintf(root, sizeof root, "%s", folder);
    snprintf(side, sizeof side, "%s", beside);
    root_length = strlen(root);
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/journal", side);
    journal = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    snprintf(path, sizeof path, "%s/control", side);
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC, 0600);
    control = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    if (journal < 0 || control == MAP_FAILED) abort();
    syscall(SYS_close, fd);
}

static void note(const char *format, ...) {
    char line[LINE];
    va_list parts;
    va_start(parts, format);
    int length = vsnprintf(line, sizeof line, format, parts);
    va_end(parts);
    int before = errno;
    /* One write on a descriptor that appends: lines of several threads do not mix. */
    if (length <= 0 || length >= LINE || syscall(SYS_write, journal, line, (size_t)length) != length) abort();
    errno = before;
}

static off_t journal_length(void) {
    struct stat found;
    return fstat(journal, &found) == 0 ? found.st_size : 0;
}

static int inside(const char *path) {
    return journal >= 0 && strncmp(path, root, root_length) == 0 && (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of(int fd, char *out) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, out, PATH_BYTES - 1);
    if (length < 0) return 0;
    out[length] = 0;
    return 1;
}

/* The absolute path, each slash once; whether it is in the data folder. */
static int absolute(int folder, const char *path, char *out) {
    char whole[2 * PATH_BYTES] = "";
    if (journal < 0) return 0;
    if (path[0] != '/') {
        if (folder == AT_FDCWD ? !getcwd(whole, PATH_BYTES) : !path_of(folder, whole)) return 0;
        strcat(whole, "/");
    }
    strncat(whole, path, PATH_BYTES - 1);
    size_t length = 0;
    for (const char *at = whole; *at && length < PATH_BYTES - 1; at++)
        if (*at != '/' || length == 0 || out[length - 1] != '/') out[length++] = *at;
    while (length > 1 && out[length - 1] == '/') length--;
    out[length] = 0;
    return inside(out);
}

/* Keeps what a path names now, so that it can come back. */
static const char *keep(const char *path, char *out) {
    struct stat found;
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &found, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(found.st_mode)) return "-";
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    unsigned number = __atomic_add_fetch(&kept_files, 1, __ATOMIC_RELAXED);
    snprintf(out, PATH_BYTES, "%s/kept-%d-%lld-%u", side, getpid(), (long long)now.tv_sec * 1000000000 + now.tv_nsec, number);
    return syscall(SYS_linkat, AT_FDCWD, path, AT_FDCWD, out, 0) == 0 ? out : "-";
}

static int open_file(int folder, const char *path, int flags, mode_t mode) {
    char whole[PATH_BYTES];
    struct stat before, after;
    int ours = (flags & (O_CREAT | O_TRUNC)) && absolute(folder, path, whole);
    int was = ours && syscall(SYS_newfstatat, AT_FDCWD, whole, &before, 0) == 0;
    int fd = syscall(SYS_openat, folder, path, flags, mode);
    if (fd >= 0 && ours && fstat(fd, &after) == 0 && S_ISREG(after.st_mode)) {
        if (!was) note("C\t%s\n", whole);
        else if (flags & O_TRUNC) note("T\t%llu\t0\n", (unsigned long long)after.st_ino);
    }
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { \
        va_list rest; \
        va_start(rest, flags); \
        mode = va_arg(rest, int); \
        va_end(rest); \
    }

int open(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int at, const char *path, int flags, ...) { MODE(flags) return open_file(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE(flags) return open_file(at, path, flags | O_LARGEFILE, mode); }

static int move(int from_at, const char *from, int to_at, const char *to, unsigned flags) {
    char old[PATH_BYTES], new[PATH_BYTES], kept[PATH_BYTES];
    if (absolute(from_at, from, old) && absolute(to_at, to, new)) note("R\t%s\t%s\t%s\n", old, new, keep(new, kept));
    return syscall(SYS_renameat2, from_at, from, to_at, to, flags);
}

int rename(const char *from, const char *to) { return move(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_at, const char *from, int to_at, const char *to) { return move(from_at, from, to_at, to, 0); }

int unlinkat(int folder, const char *path, int flags) {
    char whole[PATH_BYTES], kept[PATH_BYTES];
    int ours = absolute(folder, path, whole);
    if (ours && !(flags & AT_REMOVEDIR)) note("U\t%s\t%s\n", whole, keep(whole, kept));
    if (ours && (flags & AT_REMOVEDIR)) note("K\t%s\n", whole);
    return syscall(SYS_unlinkat, folder, path, flags);
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int linkat(int from_at, const char *from, int to_at, const char *to, int flags) {
    char whole[PATH_BYTES];
    int done = syscall(SYS_linkat, from_at, from, to_at, to, flags);
    if (done == 0 && absolute(to_at, to, whole)) note("L\t%s\n", whole);
    return done;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int mkdirat(int folder, const char *path, mode_t mode) {
    char whole[PATH_BYTES];
    int done = syscall(SYS_mkdirat, folder, path, mode);
    if (done == 0 && absolute(folder, path, whole)) note("M\t%s\n", whole);
    return done;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

static int sync_file(long call, int fd) {
    char path[PATH_BYTES];
    struct stat before;
    if (journal < 0 || fstat(fd, &before) != 0 || !path_of(fd, path) || !inside(path)) return syscall(call, fd);
    off_t offset = lseek(fd, 0, SEEK_CUR), noted = journal_length();
    uint32_t millis = control->sync_millis;
    if (millis) {
        struct timespec pause = {millis / 1000, (millis % 1000) * 1000000L};
        nanosleep(&pause, NULL);
    }
    if (control->broken && S_ISREG(before.st_mode)) {
        errno = EIO;
        return -1;
    }
    int done = syscall(call, fd);
    if (done == 0 && S_ISDIR(before.st_mode)) note("D\t%s\t%lld\n", path, (long long)noted);
    else if (done == 0)
        note("S\t%llu\t%lld\t%lld\n", (unsigned long long)before.st_ino, (long long)before.st_size, (long long)offset);
    return done;
}

int fsync(int fd) { return sync_file(SYS_fsync, fd); }
int fdatasync(int fd) { return sync_file(SYS_fdatasync, fd); }

static int resize(int fd, off_t length) {
    struct stat before;
    int known = journal >= 0 && fstat(fd, &before) == 0;
    int done = syscall(SYS_ftruncate, fd, length);
    if (done == 0 && known && length < before.st_size) note("T\t%llu\t%lld\n", (unsigned long long)before.st_ino, (long long)length);
    return done;
}

/* Whether this must fail for want of space. */
static int no_space(int fd) {
    char path[PATH_BYTES];
    if (journal < 0 || !control->full || !path_of(fd, path) || !inside(path)) return 0;
    errno = ENOSPC;
    return 1;
}

ssize_t write(int fd, const void *bytes, size_t count) { return no_space(fd) ? -1 : syscall(SYS_write, fd, bytes, count); }
ssize_t writev(int fd, const struct iovec *parts, int count) { return no_space(fd) ? -1 : syscall(SYS_writev, fd, parts, count); }
ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) {
    return no_space(fd) ? -1 : syscall(SYS_pwrite64, fd, bytes, count, at);
}
ssize_t pwrite64(int fd, const void *bytes, size_t count, off64_t at) { return pwrite(fd, bytes, count, at); }
int fallocate(int fd, int mode, off_t at, off_t length) { return no_space(fd) ? -1 : syscall(SYS_fallocate, fd, mode, at, length); }
int fallocate64(int fd, int mode, off64_t at, off64_t length) { return fallocate(fd, mode, at, length); }
int posix_fallocate(int fd, off_t at, off_t length) { return fallocate(fd, 0, at, length) == 0 ? 0 : errno; }
int posix_fallocate64(int fd, off64_t at, off64_t length) { return posix_fallocate(fd, at, length); }

int ftruncate(int fd, off_t length) { return resize(fd, length); }
int ftruncate64(int fd, off64_t length) { return resize(fd, length); }
