#include "watches.hpp"

#include "../core/channel.hpp"
#include "outboxes.hpp"

namespace dragon::wire {

namespace {

constexpr Nanoseconds kRetry = 20'000'000;  // between two attempts, if there is no memory, or a lock is held
constexpr Nanoseconds kReachAgain = 1'000'000'000;  // until an agent that could not be reached is asked again
constexpr uint32_t kNone = 0;                       // the kind of message in a proxy

Note about(Name name, bool flag) {
    Note note;
    note.name = name;
    note.flag = flag;
    return note;
}

}  // namespace

// ---- watches

void Watches::begin(Node node, Name name) {
    channels_[name].nodes.insert(node);
    readable_[node].erase(name);
    open(node, name);
}

void Watches::open(Node node, Name name) {
    auto found = channels_.find(name);
    if (found == channels_.end() || !found->second.nodes.count(node)) return;  // it has ended its watch
    Arena& a = arena();
    try {
        Bounded bounded(kLocked);
        if (!found->second.attached) {
            a.attach(name.handle(), Kind::Channel, Role::Plain, false);  // not as one end of a pipe
            found->second.attached = true;
            a.at<Channel>(name.offset)->watch(1);
        }
        report(node, name, is_readable(name));
    } catch (const StillLocked&) {
        loop_.later(kRetry, [this, node, name] { open(node, name); });
    } catch (const ObjectDestroyed&) {
        report(node, name, true);
    }
}

void Watches::end(Node node, Name name) {
    if (auto found = channels_.find(name); found != channels_.end()) {
        found->second.nodes.erase(node);
        if (found->second.nodes.empty()) close(found);
    }
    auto reported = readable_.find(node);
    if (reported == readable_.end()) return;
    reported->second.erase(name);
    for (auto& [each, watched] : channels_)
        if (watched.nodes.count(node)) return;
    readable_.erase(reported);
}

void Watches::node_left(Node node) {
    for (auto all = channels_; auto& [name, watched] : all)
        if (watched.nodes.count(node)) end(node, name);
}

void Watches::close(std::map<Name, Watched>::iterator watched) {
    if (watched->second.attached) {
        Arena& a = arena();
        a.at<Channel>(watched->first.offset)->watch(UINT32_MAX);
        a.release_when_possible(watched->first.handle(), Role::Plain);
    }
    channels_.erase(watched);
}

bool Watches::is_readable(Name name) const {
    Channel& channel = *arena().at<Channel>(name.offset);
    return channel.destroyed.load() || channel.readable();
}

void Watches::look_at(Offset offset) {
    for (auto it = channels_.lower_bound({offset, 0, 0}); it != channels_.end() && it->first.offset == offset;
         ++it) {
        auto nodes = it->second.nodes;
        for (Node node : nodes) look(node, it->first);
    }
}

void Watches::look_at_all() {
    for (auto all = channels_; auto& [name, watched] : all)
        for (Node node : watched.nodes) look(node, name);
}

void Watches::look_for(Node node) {
    auto found = readable_.find(node);
    if (found == readable_.end()) return;
    for (auto names = found->second; const Name& name : names) look(node, name);
}

void Watches::look(Node node, Name name) {
    auto watched = channels_.find(name);
    if (watched == channels_.end() || !watched->second.attached) return;
    bool readable = is_readable(name);
    if (readable != (readable_[node].count(name) > 0)) report(node, name, readable);
}

void Watches::report(Node node, Name name, bool readable) {
    // It is noted before it is sent, as before something is sent, changes are looked for.
    if (readable)
        readable_[node].insert(name);
    else
        readable_[node].erase(name);
    sessions_.send(node, What::Readable, about(name, readable));
}

// ---- proxies

Name Proxies::name_of(const Proxy& proxy) const {
    return {proxy.channel.offset, proxy.channel.generation, own_node_ << kNodeShift};
}

void Proxies::watch(Name name, bool on) { sessions_.send(name.node(), What::Watch, about(name, on)); }

Name Proxies::open(uint64_t pid, Name name) {
    auto [found, fresh] = proxies_.try_emplace(name);
    Proxy& proxy = found->second;
    if (fresh) {
        try {
            proxy.channel = arena().create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), 0, false);
        } catch (...) {
            proxies_.erase(found);
            throw;
        }
        leads_to_[proxy.channel.offset] = name;
        watch(name, true);
    }
    ++proxy.users[pid];
    return proxy.known ? name_of(proxy) : Name{};
}

void Proxies::reported(Name name, bool readable) {
    auto found = proxies_.find(name);
    if (found == proxies_.end()) return;
    found->second.reported = readable;
    show(name);
}

void Proxies::show(Name name) {
    auto found = proxies_.find(name);
    if (found == proxies_.end()) return;
    Proxy& proxy = found->second;
    Arena& a = arena();
    Channel& channel = *a.at<Channel>(proxy.channel.offset);
    if (proxy.reported != proxy.shown) {
        Message message;
        Status status = Status::Busy;
        try {
            Bounded bounded(kLocked);
            status = proxy.reported ? channel.put_small(a, {kNone, 0, 0}, "", 0) : channel.get(a, message, 0);
        } catch (const OutOfMemory&) {
        } catch (const StillLocked&) {
        }
        if (status == Status::Busy) {
            loop_.later(kRetry, [this, name] { show(name); });
            return;
        }
        proxy.shown = proxy.reported;
    }
    if (proxy.known) return;
    proxy.known = true;
    events_.add({Report::Kind::Proxy,
                 name.node(),
                 proxy.channel.offset,
                 proxy.channel.generation,
                 name,
                 false,
                 {},
                 {}});
}

void Proxies::dropped(uint64_t pid, Name proxy) {
    auto leads = leads_to_.find(proxy.offset);
    if (leads == leads_to_.end()) return;
    Name name = leads->second;
    auto found = proxies_.find(name);
    auto user = found->second.users.find(pid);
    if (user == found->second.users.end()) return;
    if (--user->second == 0) remove_user(pid, name);
}

void Proxies::left(uint64_t pid) {
    std::vector<Name> names;
    for (auto& [name, proxy] : proxies_)
        if (proxy.users.count(pid)) names.push_back(name);
    for (const Name& name : names) remove_user(pid, name);
}

void Proxies::remove_user(uint64_t pid, Name name) {
    auto found = proxies_.find(name);
    found->second.users.erase(pid);
    if (!found->second.users.empty()) return;
    Handle channel = found->second.channel;
    leads_to_.erase(channel.offset);
    proxies_.erase(found);
    watch(name, false);
    arena().release_when_possible(channel, Role::Plain);
}

void Proxies::broken(Node node, const std::string& reason, bool is_hopeless, bool is_lost) {
    if (!is_hopeless) return watch_again(node);
    std::vector<Name> names;
    for (auto& [name, proxy] : proxies_)
        if (name.node() == node) names.push_back(name);
    for (const Name& name : names) {
        auto found = proxies_.find(name);
        if (found->second.known) {
            reported(name, true);
            continue;
        }
        Handle channel = found->second.channel;
        leads_to_.erase(channel.offset);
        proxies_.erase(found);
        arena().release_when_possible(channel, Role::Plain);
        events_.add({Report::Kind::Proxy, node, 0, 0, name, true, reason, {}});
    }
    if (is_lost || !retries_.insert(node).second) return;
    loop_.later(kReachAgain, [this, node] {
        retries_.erase(node);
        watch_again(node);
    });
}

void Proxies::watch_again(Node node) {
    std::vector<Name> names;
    for (auto& [name, proxy] : proxies_)
        if (name.node() == node) names.push_back(name);
    for (const Name& name : names) watch(name, true);
}

}  // namespace dragon::wire
