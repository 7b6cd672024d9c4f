#include "process_handle.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "system_calls.hpp"

namespace dragon {

namespace {

bool lacking(int error) { return error == ENOSYS || error == EPERM; }

struct Watched {
    pid_t pid;
    uint64_t start_time;
    int bell;  // the write end of the pipe whose read end open_process() returned

    bool ended() const { return known_to_have_ended(pid, start_time); }
    bool abandoned() const {
        pollfd reader{bell, 0, 0};
        return poll(&reader, 1, 0) > 0;  // POLLERR: the read end is closed everywhere
    }
};

// The thread that watches processes where there is no pidfd_open(). It receives requests through a pipe, so
// that a fork never finds a lock held.
void watch(int requests) {
    using Clock = std::chrono::steady_clock;
    constexpr int kShortest = 5, kShare = 20;  // milliseconds; and a share: at most 1/20 of a processor
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, nullptr);
    std::vector<Watched> watched;
    int pause = kShortest;
    for (;;) {
        pollfd request{requests, POLLIN, 0};
        if (poll(&request, 1, watched.empty() ? -1 : pause) > 0) {
            Watched next{};
            if (read(requests, &next, sizeof next) != sizeof next) return;
            watched.push_back(next);
            continue;
        }
        auto start = Clock::now();
        std::erase_if(watched, [](const Watched& w) {
            bool over = w.ended();
            if (over) [[maybe_unused]]
                ssize_t told = write(w.bell, "", 1);
            if (!over && !w.abandoned()) return false;
            close(w.bell);
            return true;
        });
        auto took = std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
        pause = std::max(kShortest, static_cast<int>(took) * kShare);
    }
}

int requests_to_watch() {
    static int pipe_end = -1;
    static pid_t of = 0;
    if (of == getpid()) return pipe_end;
    if (pipe_end >= 0) close(pipe_end);  // it belongs to the process that forked this one
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw SystemFailure(errno, "pipe");
    try {
        std::thread(watch, ends[0]).detach();
    } catch (const std::system_error& error) {
        close(ends[0]);
        close(ends[1]);
        throw SystemFailure(error.code().value(), "no new thread (ulimit -u)");
    }
    pipe_end = ends[1];
    of = getpid();
    return pipe_end;
}

int open_watched(pid_t pid) {
    Watched watched{pid, 0, -1};
    char state;
    switch (process_stat(pid, state, watched.start_time)) {
        case Look::Gone:
            throw SystemFailure(ESRCH, "no such process");
        case Look::Unknown:
            throw SystemFailure(errno, "/proc cannot be read");
        case Look::Found:
            break;
    }
    int requests = requests_to_watch();
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) throw SystemFailure(errno, "pipe");
    watched.bell = ends[1];
    if (write(requests, &watched, sizeof watched) != sizeof watched) {
        int error = errno;
        close(ends[0]);
        close(ends[1]);
        throw SystemFailure(error, "watching a process");
    }
    return ends[0];
}

}  // namespace

namespace {

constexpr size_t kLongestStat = 1024;

// Reads /proc/PID/stat from the third field on, which is the state; nullptr if there is no such process.
const char* read_stat(pid_t pid, char (&text)[kLongestStat]) {
    char path[32];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return nullptr;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return nullptr;
    text[n] = 0;
    const char* p = strrchr(text, ')');  // the name may hold anything
    return p ? p + 2 : nullptr;
}

}  // namespace

pid_t parent_of(pid_t pid) {
    char text[kLongestStat];
    const char* p = read_stat(pid, text);
    return p && *p ? static_cast<pid_t>(atoi(p + 1)) : 0;
}

Look process_stat(pid_t pid, char& state, uint64_t& start_time) {
    char path[32], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int fd = ::open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);
    int error = errno;
    if (fd >= 0) close(fd);
    if (n <= 0) {
        // Only ESRCH from the kernel shows that the process is gone: the file may be missing for other
        // reasons.
        bool gone = kill(pid, 0) != 0 && errno == ESRCH;
        errno = error;
        return gone ? Look::Gone : Look::Unknown;
    }
    text[n] = 0;
    const char* p = strrchr(text, ')');  // the name may hold anything
    if (!p || strlen(p) < 3) return Look::Unknown;
    p += 2;
    state = *p;
    for (int field = 3; field < 22; ++field) {
        p = strchr(p, ' ');
        if (!p) return Look::Unknown;
        ++p;
    }
    start_time = strtoull(p, nullptr, 10);
    return Look::Found;
}

bool known_to_have_ended(pid_t pid, uint64_t start_time) {
    char state;
    uint64_t started;
    Look look = process_stat(pid, state, started);
    if (look != Look::Found) return look == Look::Gone;
    return state == 'Z' || state == 'X' || (start_time != 0 && started != start_time);
}

int open_process(pid_t pid) {
    int descriptor = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
    if (descriptor >= 0) return descriptor;
    if (!lacking(errno)) throw SystemFailure(errno, "pidfd_open");
    return open_watched(pid);
}

void signal_process(int descriptor, pid_t pid, int signal) {
    if (syscall(SYS_pidfd_send_signal, descriptor, signal, nullptr, 0) == 0) return;
    if (errno != EBADF && !lacking(errno)) throw SystemFailure(errno, "pidfd_send_signal");
    pollfd ended{descriptor, POLLIN, 0};
    if (poll(&ended, 1, 0) != 0) throw SystemFailure(ESRCH, "no such process");
    if (kill(pid, signal) != 0) throw SystemFailure(errno, "kill");
}

}  // namespace dragon
