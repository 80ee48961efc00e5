// Preloaded into a broker: while the file that LAB_SLOW_SYNC names exists, a flush to the disk takes 0.4 s more.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <unistd.h>

static void wait_where_asked(void) {
    const char *path = getenv("LAB_SLOW_SYNC");
    if (path && access(path, F_OK) == 0) usleep(400000);
}

int fsync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    wait_where_asked();
    return real(file);
}

int fdatasync(int file) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    wait_where_asked();
    return real(file);
}
