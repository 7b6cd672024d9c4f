#include "process.hpp"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "arena.hpp"

namespace dragon {

namespace {

constexpr uint64_t bit(int signal) { return uint64_t{1} << (signal - 1); }

// The signals that a Python interpreter ignores for itself. Programs that it starts do not inherit this, as
// with the subprocess module.
constexpr uint64_t kPythons = bit(SIGPIPE) | bit(SIGXFSZ);

constexpr const char* kNoRoom = "no new process (ulimit -u)";

std::vector<char*> pointers(const std::vector<std::string>& strings) {
    std::vector<char*> result;
    for (const auto& s : strings) result.push_back(const_cast<char*>(s.c_str()));
    result.push_back(nullptr);
    return result;
}

struct Outcome {
    volatile int error = 0;
    const char* volatile step = nullptr;
    volatile pid_t pid = 0;
};

struct Prepared {
    const Launch& what;
    std::vector<char*> arguments, environment;
    cpu_set_t cpus;
    pid_t parent;
};

// Ends a process that shares its parent's memory. It is not declared noreturn: before such calls
// AddressSanitizer cleans the stack, and it knows only the stack of the parent.
void leave(int code) { syscall(SYS_exit_group, code); }

// Runs in the child, in memory that it shares with its parent until it execs: system calls only.
// AddressSanitizer would mark parts of a stack on which no call returns, and so spoil that memory for its
// next user.
__attribute__((no_sanitize_address)) void become(const Prepared& p, Outcome& outcome) {
    const Launch& w = p.what;
    auto fail = [&](const char* step) {
        outcome.error = errno;
        outcome.step = step;
        leave(127);
    };
    struct sigaction hangup{};
    sigaction(SIGHUP, nullptr, &hangup);
    uint64_t ignored = hangup.sa_handler == SIG_IGN ? bit(SIGHUP) : 0;  // as nohup sets it
    if (w.signals) ignored = w.signals->ignored & ~kPythons;
    for (int s = 1; s < NSIG; ++s) signal(s, ignored & bit(s) ? SIG_IGN : SIG_DFL);
    block_signals(w.signals ? w.signals->blocked : 0);
    if (w.death_signal) {
        prctl(PR_SET_PDEATHSIG, w.death_signal);
        if (getppid() != p.parent) leave(127);
    }
    if (w.reaper) become_reaper();
    if (!w.cpus.empty() && sched_setaffinity(0, sizeof p.cpus, &p.cpus) != 0) fail("sched_setaffinity");
    take_limits(w.limits);
    if (!w.folder.empty() && chdir(w.folder.c_str()) != 0) fail("working directory");
    // First move all descriptors to numbers from n on, so that none is overwritten, then to their places.
    int n = static_cast<int>(w.descriptors.size());
    int moved[64];
    for (int i = 0; i < n; ++i)
        if ((moved[i] = fcntl(w.descriptors[static_cast<size_t>(i)], F_DUPFD_CLOEXEC, n)) < 0)
            fail("descriptor");
    for (int i = 0; i < n; ++i)
        if (dup2(moved[i], i) < 0) fail("descriptor");
    execve(w.executable.c_str(), p.arguments.data(), p.environment.data());
    fail("executable");
}

// Stacks for the new process, and for the process between it and the caller.
class Stacks {
  public:
    Stacks() : memory_(mmap(nullptr, 2 * kSize, PROT_READ | PROT_WRITE, kFlags, -1, 0)) {
        if (memory_ == MAP_FAILED) throw SystemFailure(errno, kNoRoom);
    }
    Stacks(const Stacks&) = delete;
    ~Stacks() { munmap(memory_, 2 * kSize); }
    // Starts a process on one of the stacks. It shares the memory of this process; when this returns, it has
    // ended or become another program.
    template <class F>
    pid_t run(int which, F& child) {
        auto start = [](void* what) {
            (*static_cast<F*>(what))();
            return 0;
        };
        return clone(start, static_cast<char*>(memory_) + (which + 1) * kSize,
                     CLONE_VM | CLONE_VFORK | SIGCHLD, &child);
    }

  private:
    static constexpr size_t kSize = 128 * 1024;
    static constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE;
    void* memory_;
};

}  // namespace

mode_t current_umask() {
    mode_t mask = umask(0077);
    umask(mask);
    return mask;
}

std::optional<Signals> current_signals() {
    Signals mine{};
    for (int s = 1; s < NSIG; ++s) {
        struct sigaction action{};
        if (sigaction(s, nullptr, &action) != 0) continue;
        if (action.sa_handler == SIG_IGN) mine.ignored |= bit(s);
        if (action.sa_handler == SIG_DFL) mine.defaults |= bit(s) & (kPythons | bit(SIGINT));
    }
    sigset_t blocked;
    pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
    for (int s = 1; s < NSIG; ++s)
        if (sigismember(&blocked, s) == 1) mine.blocked |= bit(s);
    if (mine.ignored == kPythons && !mine.blocked && !mine.defaults) return {};
    return mine;
}

void block_signals(uint64_t set) {
    sigset_t blocked;
    sigemptyset(&blocked);
    for (int s = 1; s < NSIG; ++s)
        if (set & bit(s)) sigaddset(&blocked, s);
    pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

Limits current_limits() {
    Limits result;
    for (int number = 0; number < RLIM_NLIMITS; ++number) {
        rlimit limit{};
        if (getrlimit(number, &limit) != 0) throw SystemFailure(errno, "getrlimit");
        result.push_back(static_cast<int64_t>(limit.rlim_cur));
        result.push_back(static_cast<int64_t>(limit.rlim_max));
    }
    result.push_back(getpriority(PRIO_PROCESS, 0));
    return result;
}

bool limits_addresses(const Limits& limits) {
    return limits.size() == 2 * RLIM_NLIMITS + 1 &&
           static_cast<rlim_t>(limits[2 * RLIMIT_AS]) != RLIM_INFINITY;
}

void take_limits(const Limits& limits) {
    if (limits.size() != 2 * RLIM_NLIMITS + 1) return;
    for (int number = 0; number < RLIM_NLIMITS; ++number) {
        const int64_t* given = &limits[2 * static_cast<size_t>(number)];
        rlimit wanted{static_cast<rlim_t>(given[0]), static_cast<rlim_t>(given[1])}, mine{};
        if (setrlimit(number, &wanted) == 0 || getrlimit(number, &mine) != 0) continue;
        rlimit nearest{std::min(wanted.rlim_cur, mine.rlim_max), std::min(wanted.rlim_max, mine.rlim_max)};
        setrlimit(number, &nearest);
    }
    setpriority(PRIO_PROCESS, 0, static_cast<int>(limits.back()));
}

void become_reaper() { prctl(PR_SET_CHILD_SUBREAPER, 1); }

pid_t launch(const Launch& w) {
    if (w.descriptors.size() > 64) throw SystemFailure(E2BIG, "more than 64 descriptors for a new process");
    Prepared p{w, pointers(w.arguments), pointers(w.environment), {}, getpid()};
    CPU_ZERO(&p.cpus);
    for (int cpu : w.cpus) CPU_SET(cpu, &p.cpus);
    Outcome outcome;
    Stacks stacks;
    auto program = [&] { become(p, outcome); };
    auto between = [&] {
        pid_t grandchild = stacks.run(1, program);
        if (grandchild < 0) {
            outcome.error = errno;
            outcome.step = kNoRoom;
        }
        outcome.pid = grandchild;
        leave(0);
    };
    // No signal handler may run in the child, which shares the memory of this process.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = w.detached ? stacks.run(0, between) : stacks.run(0, program);
    int error = errno;
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (pid < 0) throw SystemFailure(error, kNoRoom);
    if (w.detached || outcome.error)
        while (waitpid(pid, nullptr, 0) < 0 && errno == EINTR);
    if (outcome.error) {
        std::string step = outcome.step;
        throw SystemFailure(outcome.error, step == "executable"          ? w.executable
                                           : step == "working directory" ? w.folder
                                                                         : step);
    }
    if (w.detached && outcome.pid == 0)  // the child did not share the memory of this process
        throw SystemFailure(ENOSYS,
                            "no processes under an emulated processor (qemu-user); use the machine's own");
    return w.detached ? static_cast<pid_t>(outcome.pid) : pid;
}

}  // namespace dragon
