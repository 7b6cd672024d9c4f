// What processes leave running when they end: their children, and the children of these.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace dragon {

// Ends them, for a process (this one) to which they come because it is a subreaper and everything that it
// starts is one too: an orphan that comes to it was left by a process that it started, or by an earlier
// orphan, which ended just now. Only this process reaps its children, so a process id stays theirs until
// then, and one that forks while it is killed leaves a child that comes here in turn: nothing escapes.
class Leftovers {
  public:
    using Clock = std::chrono::steady_clock;

    // When what was left is killed; nothing: it is left alone. Asked to end (SIGTERM) before, unless that is
    // now.
    using Fate = std::optional<Clock::time_point>;

    Leftovers();
    void close_file();  // in a child, which has none of this

    // A process was killed, or ended by itself. What is due to what it left, where it is not to be left
    // alone.
    Fate fate_after(pid_t pid, int status) const;
    void end(pid_t pid, Fate fate);  // ask or kill a process, started or orphan
    bool is_to_end(pid_t pid) const { return ending_.count(pid); }
    void left_with(Fate fate);           // a process with this fate for what it left has ended
    bool reaped(pid_t pid, int status);  // true if that was an orphan
    void forget(pid_t pid) { ending_.erase(pid); }

    // Finds what was left by those that were told of since the last time, and begins to end it. `started`
    // says whether a child was started by this process.
    template <class Started>
    void look(Started started) {
        if (!any_ended_) return;
        for (pid_t pid : children())
            if (!ending_.count(pid) && !alone_.count(pid) && !started(pid)) treat(pid);
        any_ended_ = false;
    }
    // Whatever else is there now was left by nobody.
    template <class Started>
    void leave_all(Started started) {
        for (pid_t pid : children())
            if (!ending_.count(pid) && !started(pid)) alone_.insert(pid);
    }

    int patience() const;  // milliseconds until something is to be killed; -1: nothing is
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
    Fate fate_;  // of what is found next
    std::unordered_map<pid_t, Ending> ending_;
    std::unordered_set<pid_t> alone_;
};

}  // namespace dragon
