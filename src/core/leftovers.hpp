// The processes that others leave running when they end: their children, and the children of these.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace dragon {

// Ends leftover processes. This process is a subreaper, and so is every process that it starts. An orphan
// that becomes its child was therefore left by a process that it started, or by an earlier orphan, which has
// just ended. Only this process reaps its children, so a process id stays theirs until then. A process that
// forks while it is killed leaves a child that becomes a child of this process in turn: none escapes.
class Leftovers {
  public:
    using Clock = std::chrono::steady_clock;

    // The time at which the processes left behind are killed (SIGKILL); nullopt: they are left alone. They
    // get SIGTERM before, unless the time has come already.
    using Fate = std::optional<Clock::time_point>;

    Leftovers();
    void close_file();  // in a forked child, which does not use this object

    // The fate of what the process left, if that is not to be left alone. `status`: the wait status of the
    // process.
    Fate fate_after(pid_t pid, int status) const;
    void end(pid_t pid, Fate fate);  // signals a process, started or orphan
    bool is_to_end(pid_t pid) const { return ending_.count(pid); }
    void left_with(Fate fate);           // records the end of a process whose leftovers have this fate
    bool reaped(pid_t pid, int status);  // true if that was an orphan
    void forget(pid_t pid) { ending_.erase(pid); }

    // Finds the orphans of the processes recorded by left_with() since the last call, and begins to end them.
    // `started` returns whether this process started a child.
    template <class Started>
    void look(Started started) {
        if (!any_ended_) return;
        for (pid_t pid : children())
            if (!ending_.count(pid) && !alone_.count(pid) && !started(pid)) treat(pid);
        any_ended_ = false;
    }
    // Leaves alone all other children that exist now.
    template <class Started>
    void leave_all(Started started) {
        for (pid_t pid : children())
            if (!ending_.count(pid) && !started(pid)) alone_.insert(pid);
    }

    int patience() const;  // milliseconds until a process is to be killed; -1: none is
    void kill_overdue();

  private:
    struct Ending {
        Clock::time_point kill_at;
        bool killed;
    };

    std::vector<pid_t> children();
    void treat(pid_t pid);

    int file_;
    std::string text_;
    bool any_ended_ = false;
    Fate fate_;  // of the orphans that look() finds next
    std::unordered_map<pid_t, Ending> ending_;
    std::unordered_set<pid_t> alone_;
};

}  // namespace dragon
