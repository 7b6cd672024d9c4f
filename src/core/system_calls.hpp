// System calls by their numbers, because the C library and the headers of the build machine may be too old
// for them.
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "arena.hpp"

#ifndef SYS_memfd_create
#if defined(__x86_64__)
#define SYS_memfd_create 319
#elif defined(__powerpc64__)
#define SYS_memfd_create 360
#elif defined(__s390x__)
#define SYS_memfd_create 350
#else
#define SYS_memfd_create 279
#endif
#endif
#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

namespace dragon {

// Returns a descriptor of anonymous memory, closed on exec. Throws SystemFailure.
inline int anonymous_memory(const char* label) {
    constexpr unsigned kCloseOnExec = 1;
    int fd = static_cast<int>(syscall(SYS_memfd_create, label, kCloseOnExec));
    if (fd < 0) throw SystemFailure(errno, "memfd_create");
    return fd;
}

// Allocates bytes of a file from `start` on, however often a signal interrupts that: older kernels end the
// call for any signal. Returns the number of the error, or 0.
inline int allocate_bytes(int fd, uint64_t start, uint64_t length) {
    int error;
    while ((error = posix_fallocate(fd, static_cast<off_t>(start), static_cast<off_t>(length))) == EINTR);
    return error;
}

}  // namespace dragon
