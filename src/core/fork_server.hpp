// The zygote between two forks. After a fork every page is copied that is written to, and Python writes to
// some hundred and seventy of them for each process that it starts and reaps: here they are a few.
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

// The words of a process's record, and what the first of them says; runtime/spawning.py has the same. One
// that was started has no error, but a bit for each signal that it was sent, from 1 on.
enum RecordWord : uint32_t { kStatus, kPid, kCode, kError, kSent = kError };
enum RecordStatus : uint64_t { kAsked, kRunning, kExited, kFailed };

// What is to be done next that the server does not do itself.
enum class Next : uint8_t {
    Wait,     // nothing: wait()
    Agent,    // read what the agent said
    Request,  // start the process of request(), and say started() or failed()
    Refused,  // note that a request could not be taken, and why()
    Child,    // be the process of request()
    End,      // SIGTERM came
};

// Takes start requests (see infrastructure/messages.py) and reaps what ends, telling the agent of both. Forks
// for requests by itself once it may; others are the caller's. A single thread's.
class ForkServer {
  public:
    // Descriptors: requests come as datagrams, events go to the agent in packets, SIGCHLD and SIGTERM are
    // read.
    ForkServer(int requests, int agent, int signals);

    Next next();
    void wait();  // until there is something to do

    // Labels go before the lines of processes; and where the run has several nodes, output to its front end.
    void set_output(bool label, bool forwards);

    // The request that next() told of: as it came, what are to be the descriptors 0, 1, 2 … of its process,
    // and the place in the arena that it has.
    std::string_view data() const { return {buffer_.data(), size_}; }
    const SpawnRequest& request() const { return asked_; }
    std::vector<int> descriptors() const;
    OwnerId slot() const { return slot_; }
    const std::string& why() const { return why_; }
    // Either of these ends it. Forked: the process takes its place in the arena by itself.
    void started(pid_t pid, bool forked);
    void failed(int error, const std::string& text);
    // From now on requests of the same main program and surroundings are forked for without asking.
    void fork_alike();

    void synchronise();  // tell the agent all that has happened so far, and that this is all
    void reap();
    void
    disown();  // the children that it has now and did not start, as those of a main program that was imported
    std::vector<pid_t> running() const;

    // In a new child: be set up as its request asks for, with none of the server's own descriptors.
    void enter_child();

  private:
    struct Child {
        uint64_t puid, parent, group;
        Handle record;
        bool leave_running;  // what it started goes on after its end
    };

    void flush();
    void look(int timeout);  // milliseconds; -1: for ever
    Next serve();
    bool receive();
    bool data_is_beside() const;
    void read_beside();
    Next fork_for_it();
    int open_stream(int number);
    void tell_streams();
    void close_descriptors();
    bool read_signals() const;  // whether one of them was SIGTERM
    MsgpackWriter event(std::string_view kind, uint8_t values, uint64_t puid, uint64_t group);
    // Begins to end what a child that has ended leaves. Nothing is due where that is to go on.
    Leftovers::Fate end_what_it_started(pid_t pid, const Child& child, int status);
    void ended(const Child& child, int status, bool leaves);

    int requests_, agent_, signals_, null_;
    pid_t me_;
    mode_t umask_;
    unsigned ready_ = 0;  // sources that have something to read
    bool heard_ = false;  // the agent said what the run is like, which comes before everything else
    bool label_ = false, forwards_ = false;
    std::unordered_set<ino_t> labelled_;  // pipes whose lines get labels
    bool alike_ = false;
    std::string main_, surroundings_;  // what may be forked for, encoded
    std::vector<char> buffer_;
    size_t size_ = 0;
    std::vector<int> descriptors_, opened_;
    std::array<int, 3> streams_{};
    std::array<std::vector<int>, 3> passed_;  // what the agent gets of each stream
    int lacking_ = 0;  // the number of the stream whose file cannot be opened, or kFolder
    SpawnRequest asked_;
    OwnerId slot_ = 0;
    std::string why_;
    std::string events_;
    uint32_t untold_ = 0;
    std::vector<int> beside_;  // descriptors that the untold events are about
    std::unordered_map<pid_t, Child> children_;
    std::unordered_map<uint64_t, std::unordered_set<pid_t>> started_by_;  // children, by who asked for them
    Leftovers leftovers_;
};

}  // namespace dragon
