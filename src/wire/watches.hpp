// Reports to other nodes whether channels of this node can be read, for the descriptors that processes there
// wait for.
//
// A change is reported to a node before anything that is sent to it later. So if a process has emptied a
// channel before it released a lock, and one of another node acquires the lock, that one sees the channel
// empty.
//
// On the other side, a process that needs a file descriptor for a channel of another node is given that of a
// channel of its own node, the proxy, which has a message in it while the other channel can be read.
#pragma once

#include <map>
#include <set>

#include "events.hpp"
#include "loop.hpp"
#include "sessions.hpp"

namespace dragon::wire {

// The channels of this node that other nodes watch.
class Watches {
  public:
    Watches(Loop& loop, Sessions& sessions) : loop_(loop), sessions_(sessions) {}
    void begin(Node node, Name name);
    void end(Node node, Name name);
    void node_left(Node node);
    bool any(Node node) const { return readable_.count(node) > 0; }
    // Reports what has changed: of the channel at that offset, or of all.
    void look_at(Offset offset);
    void look_at_all();
    // Reports to a node which channels that it takes for readable are not.
    void look_for(Node node);

  private:
    struct Watched {
        bool attached = false;
        std::set<Node> nodes;
    };
    void open(Node node, Name name);
    void look(Node node, Name name);
    void report(Node node, Name name, bool readable);
    bool is_readable(Name name) const;
    void close(std::map<Name, Watched>::iterator watched);

    Loop& loop_;
    Sessions& sessions_;
    std::map<Name, Watched> channels_;
    std::map<Node, std::set<Name>> readable_;  // what was reported as readable to each watching node
};

// The proxies of this node.
class Proxies {
  public:
    Proxies(Loop& loop, Sessions& sessions, Events& events, uint32_t own_node)
        : loop_(loop), sessions_(sessions), events_(events), own_node_(own_node) {}
    // Returns the proxy of a channel, for a handle of a process; an offset of 0 if an event will tell when it
    // is known.
    Name open(uint64_t pid, Name name);
    void reported(Name name, bool readable);
    void dropped(uint64_t pid, Name proxy);
    void left(uint64_t pid);
    // The connection to a node broke. If it cannot be reached, or is lost, reads of its channels fail at
    // once, so the proxies become readable; a node that is not lost is asked again after a delay.
    void broken(Node node, const std::string& reason, bool is_hopeless, bool is_lost);

  private:
    struct Proxy {
        Handle channel;
        std::map<uint64_t, uint64_t> users;
        bool known = false, reported = false, shown = false;
    };
    void show(Name name);
    void remove_user(uint64_t pid, Name name);
    void watch(Name name, bool on);
    void watch_again(Node node);
    Name name_of(const Proxy& proxy) const;

    Loop& loop_;
    Sessions& sessions_;
    Events& events_;
    uint32_t own_node_;
    std::map<Name, Proxy> proxies_;
    std::map<Offset, Name> leads_to_;
    std::set<Node> retries_;
};

}  // namespace dragon::wire
