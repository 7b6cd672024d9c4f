// The zygote's work between two forks. After a fork, every page that is written to is copied. Python would
// write to about 170 pages for each process that it starts and reaps; this code writes to a few.
#pragma once

#include <sys/types.h>

#include <array>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "arena.hpp"
#include "leftovers.hpp"
#include "msgpack.hpp"
#include "process.hpp"
#include "spawn_request.hpp"

namespace dragon {

// The words of a process's record, and the values of the status word; runtime/spawning.py has the same. While
// a process runs, the error word holds the set of signals that it was sent: signal n is bit n - 1.
enum RecordWord : uint32_t { kStatus, kPid, kCode, kError, kSent = kError };
enum RecordStatus : uint64_t { kAsked, kRunning, kExited, kFailed };

// What the caller has to do next, because the server does not do it itself.
enum class Next : uint8_t {
    Wait,     // nothing: wait()
    Agent,    // read the messages of the agent
    Request,  // start the process of request(), then call started() or failed()
    Refused,  // log that a request was refused, with the reason why()
    Child,    // this is the forked child: run the process of request()
    End,      // SIGTERM arrived
};

// Receives start requests (see infrastructure/messages.py), reaps processes that end, and notifies the agent
// of both. After fork_alike() it forks by itself for requests that are alike; the caller starts the others.
// For a single thread.
class ForkServer {
  public:
    // Takes descriptors: requests arrive as datagrams at the first, events are sent to the agent as packets
    // through the second, and SIGCHLD and SIGTERM are read from the third, a signalfd.
    ForkServer(int requests, int agent, int signals);

    Next next();
    // Waits until there is something to do. Returns true, once after await_idle(), if nothing comes for a
    // while.
    bool wait();
    void await_idle() { awaits_idle_ = true; }

    // Whether the output lines of processes get labels, and whether the agent forwards output to the front
    // end (if the run has several nodes).
    void set_output(bool label, bool forwards);

    // The request that next() returned: as it arrived, parsed, the descriptors that become 0, 1, 2 … of its
    // process, and the arena slot of the process.
    std::string_view data() const { return {buffer_.data(), size_}; }
    const SpawnRequest& request() const { return asked_; }
    std::vector<int> descriptors() const;
    OwnerId slot() const { return slot_; }
    const std::string& why() const { return why_; }
    // Either of these completes the request. `forked`: the process takes its arena slot by itself.
    void started(pid_t pid, bool forked);
    void failed(int error, const std::string& text);
    // Allows the server to fork by itself for requests with the same main program and surroundings.
    void fork_alike();

    void synchronise();  // reports all events up to now to the agent, and a mark that follows them
    void reap();
    void disown();  // leaves alone the present children that it did not start, such as those of an imported
                    // main program
    std::vector<pid_t> running() const;

    // In a new child: sets it up as its request specifies, and closes the server's own descriptors.
    void enter_child();

  private:
    struct Child {
        uint64_t puid, parent, group;
        Handle record;
        bool leave_running;  // the processes that it started continue after its end
    };

    void flush();
    void look(int timeout);  // milliseconds; -1: without limit
    Next serve();
    bool receive();
    bool data_is_beside() const;
    void read_beside();
    Next fork_for_it();
    int open_stream(int number);
    void tell_streams();
    void close_descriptors();
    bool read_signals() const;  // returns whether one of them was SIGTERM
    MsgpackWriter event(std::string_view kind, uint8_t values, uint64_t puid, uint64_t group);
    // Begins to end the processes that an ended child leaves. Returns nullopt if they are to continue.
    Leftovers::Fate end_what_it_started(pid_t pid, const Child& child, int status);
    void ended(const Child& child, int status, bool leaves);

    int requests_, agent_, signals_, null_;
    pid_t me_;
    mode_t umask_;
    unsigned ready_ = 0;  // sources that have something to read
    bool awaits_idle_ = false;
    bool heard_ = false;  // the agent has sent the description of the run, which precedes everything else
    bool label_ = false, forwards_ = false;
    std::unordered_set<ino_t> labelled_;  // pipes whose lines get labels
    bool alike_ = false;
    std::string main_, surroundings_;  // of the requests for which the server may fork, encoded
    std::vector<char> buffer_;
    size_t size_ = 0;
    std::vector<int> descriptors_, opened_;
    std::array<int, 3> streams_{};
    std::array<std::vector<int>, 3> passed_;  // the descriptors that the agent gets for each stream
    int lacking_ = 0;  // the number of the stream whose file cannot be opened, or kFolder
    SpawnRequest asked_;
    OwnerId slot_ = 0;
    uint64_t asked_at_ = 0;  // when the start of its process began, in nanoseconds since 1970
    std::string why_;
    std::string events_;
    uint32_t untold_ = 0;
    std::vector<int> beside_;  // the descriptors that belong to the pending events
    std::unordered_map<pid_t, Child> children_;
    std::unordered_map<uint64_t, std::unordered_set<pid_t>> started_by_;  // children, by their parent's puid
    Leftovers leftovers_;
};

}  // namespace dragon
