// Starting an executable: everything is prepared before, so that the child only makes system calls.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace dragon {

// The system tells it only when it is changed. What another thread creates meanwhile is for its owner alone.
mode_t current_umask();

// Soft and hard resource limits by number, then the niceness.
using Limits = std::vector<int64_t>;

Limits current_limits();

// Whether addresses are among what they limit.
bool limits_addresses(const Limits& limits);

// Be limited like that, or as like that as this user may; system calls only.
void take_limits(const Limits& limits);

// Processes below this one whose parents end become its children, where the kernel can do that.
void become_reaper();

// What a process does about signals: sets of those that are ignored, blocked, or left to the system although
// Python would see to them (SIGINT, SIGPIPE, SIGXFSZ). Signal n is bit n - 1.
struct Signals {
    uint64_t ignored, blocked, defaults;
};

// Those of the calling thread; nothing where they are those that an interpreter begins with.
std::optional<Signals> current_signals();

// The calling thread has these blocked; a system call only.
void block_signals(uint64_t set);

struct Launch {
    std::string executable;
    std::vector<std::string> arguments, environment;
    std::string folder;              // empty: the caller's
    std::vector<int> descriptors;    // become 0, 1, 2 …; all others are closed on exec as they are marked
    std::vector<int> cpus;           // empty: the caller's
    Limits limits;                   // empty: the caller's
    std::optional<Signals> signals;  // nothing: none, but for SIGHUP where the caller ignores that
    int death_signal = 0;            // sent to the child when the calling thread ends
    bool reaper = false;             // processes below it whose parents end become its children
    bool detached = false;           // not a child of the caller; for the agent
};

// Returns the process id. Throws SystemFailure that names the step that failed and what it was about.
pid_t launch(const Launch& what);

}  // namespace dragon
