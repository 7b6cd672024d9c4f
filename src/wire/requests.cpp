#include "requests.hpp"

#include <algorithm>
#include <cstring>
#include <optional>

#include "../core/channel.hpp"
#include "outboxes.hpp"
#include "parcels.hpp"

namespace dragon::wire {

namespace {

constexpr int kKept = 64;
constexpr size_t kBranches = 8;
constexpr int kDeliveries =
    500;  // attempts to put an answer into a channel that is locked, or without memory

Operation operation_of(std::string_view body) {
    Operation operation;
    if (body.size() < sizeof operation) throw Invalid("an operation that is cut off");
    memcpy(&operation, body.data(), sizeof operation);
    if (operation.what >= Do::kCount) throw Invalid("an unknown operation");
    return operation;
}

std::string bytes_of(const Operation& operation) {
    return {reinterpret_cast<const char*>(&operation), sizeof operation};
}

// The body of an answer.
struct Answered {
    uint64_t id;
    uint32_t kind, unused = 0;
    Result result;
};

// What undoes an operation that was done, together with the payload of the outcome; nothing if it need not be
// undone.
std::optional<Operation> reverse_of(const Operation& operation, const Outcome& outcome) {
    if (!outcome.was_done()) return {};
    Operation reverse = operation;
    reverse.silent = 1;
    reverse.timeout = 0;
    reverse.a = 1;
    switch (operation.what) {
        case Do::ChannelGet:
            if (operation.words.offset)
                return {};  // the pool gives the task of a worker that ended to another
            reverse.what = Do::ChannelPutBack;
            reverse.a = outcome.kind;
            return reverse;
        case Do::LockAcquire:
            reverse.what = Do::LockRelease;
            return reverse;
        case Do::SemaphoreAcquire:
            reverse.what = Do::SemaphoreRelease;
            return reverse;
        default:
            return {};
    }
}

}  // namespace

void Requests::open_desk() {
    if (desk_.offset) return;
    Arena& a = arena();
    desk_ = a.create<Channel>(Kind::Channel, Role::Plain, sizeof(Channel), 0, false);
    // Blocks that it keeps, so that a process can release what it holds when all memory is in use.
    Channel& desk = *a.at<Channel>(desk_.offset);
    Message message;
    for (int i = 0; i < kKept; ++i) desk.put_small(a, {}, "", 0);
    for (int i = 0; i < kKept; ++i) desk.get(a, message, 0);
    desk.enable_bell(a, Channel::kAgents);
    a.set_desk(desk_);
}

bool Requests::rang(Offset offset) {
    if (!desk_.offset || offset != desk_.offset) return false;
    serve_desk();
    return true;
}

void Requests::serve_desk() {
    if (!desk_.offset) return;
    Arena& a = arena();
    Channel& desk = *a.at<Channel>(desk_.offset);
    desk.heard();
    Message message;
    for (;;) {
        Status status = desk.get(a, message, 0);
        if (status == Status::Busy) loop_.later(kLocked, [this] { serve_desk(); });
        if (status != Status::Ok) return;
        try {
            take(message);
        } catch (const std::exception& error) {
            events_.add({Report::Kind::Log,
                         own_node_,
                         0,
                         0,
                         {},
                         false,
                         std::string("an operation of a process of this node was refused: ") + error.what(),
                         {}});
        }
    }
}

void Requests::take(const Message& message) {
    Arena& a = arena();
    std::shared_ptr<Block> block = message.block ? std::make_shared<Block>(&a, message.block) : nullptr;
    const char* data = block ? a.at<char>(block->at) + kDataStart : message.data;
    Operation operation = operation_of({data, message.label.size});
    Payload payload{data + sizeof operation, message.label.size - sizeof operation, block, nullptr};
    if (operation.what == Do::Cancel) return cancel(operation.pid, operation.number);
    submit(operation, std::move(payload));
}

uint64_t Requests::ask(Operation operation, Payload payload) {
    operation.number = ++last_;
    operation.pid = static_cast<uint64_t>(getpid());
    operation.owner = arena().self();
    operation.answers = {};
    uint64_t number = operation.number;
    submit(operation, std::move(payload));
    return number;
}

void Requests::cancel_own(uint64_t number) { cancel(static_cast<uint64_t>(getpid()), number); }

void Requests::submit(const Operation& operation, Payload payload, Guests::Answer done) {
    uint64_t id = ++last_;
    Asked asked{operation, operation.object.node(), 0, 0, now(), false, std::move(done)};
    if (asked.node == own_node_ && operation.what == Do::Release)
        return dropped(operation.pid, operation.object);
    if (asked.node == own_node_) {
        asked_[id] = asked;
        if (!operation.silent) ids_[{operation.pid, operation.number}] = id;
        uint64_t waiting = perform(own_node_, operation, std::move(payload),
                                   [this, id](Outcome outcome) { finish(id, std::move(outcome)); });
        if (auto found = asked_.find(id); found != asked_.end()) found->second.waiting = waiting;
        return;
    }
    if (asked.node >= nodes_) {
        std::string text = "the run has no node " + std::to_string(asked.node);
        return deliver(asked, Outcome::failed({"ValueError", text}));
    }
    if (auto lost = lost_.find(asked.node); lost != lost_.end()) {
        if (!operation.silent) deliver(asked, Outcome::failed({"NodeLostError", lost->second}));
        return;
    }
    bool fresh = false;
    if (operation.pid) {  // not for one that has ended, for which something is undone
        auto contacts = contacts_.try_emplace(operation.pid);
        contacts.first->second.insert(asked.node);
        fresh = contacts.second;
    }
    if (fresh) events_.add({Report::Kind::Client, own_node_, operation.pid, 0, {}, false, {}, {}});
    if (payload.size && !payload.keep) payload = Payload::of(std::string(payload.view()));
    Operation sent = operation;
    sent.number = id;
    asked.epoch = sessions_.send(asked.node, What::Operate, bytes_of(sent), std::move(payload));
    if (operation.silent) return;
    asked_[id] = asked;
    ids_[{operation.pid, operation.number}] = id;
}

uint64_t Requests::perform(Node node, const Operation& operation, Payload payload, Guests::Answer answer) {
    if (operation.what != Do::ShardSpread)
        return guests_.perform(node, operation, std::move(payload), std::move(answer));
    spread(node, operation, payload, std::move(answer));
    return 0;
}

// Puts a record with a shard of this node, and has it put with the others: by at most kBranches of them, each
// of which passes it on to its part of the rest.
void Requests::spread(Node node, const Operation& operation, const Payload& payload, Guests::Answer answer) {
    if (operation.c > payload.size / sizeof(Name)) throw Invalid("names of shards that are cut off");
    std::vector<Name> others(operation.c);
    std::copy_n(payload.data, operation.c * sizeof(Name), reinterpret_cast<char*>(others.data()));
    std::string_view record = payload.view().substr(operation.c * sizeof(Name));
    size_t branches = std::min(kBranches, others.size());
    auto gather = [left = branches + 1, all = Outcome::of(true),
                   answer = std::move(answer)](Outcome one) mutable {
        if (!one.was_done()) all = std::move(one);
        if (--left == 0) answer(std::move(all));
    };
    auto gathered = std::make_shared<decltype(gather)>(std::move(gather));
    auto done = [gathered](Outcome one) { (*gathered)(std::move(one)); };
    for (size_t i = 0; i < branches; ++i) {
        size_t first = others.size() * i / branches, end = others.size() * (i + 1) / branches;
        Operation branch = operation;
        branch.object = others[first];
        branch.b = operation.ticket;
        branch.c = end - first - 1;
        branch.number = ++last_;
        branch.pid = 0;
        branch.silent = 0;
        std::string text(reinterpret_cast<const char*>(&others[first] + 1), branch.c * sizeof(Name));
        submit(branch, Payload::of(text.append(record)), done);
    }
    Operation put = operation;
    put.what = Do::ShardPut;
    guests_.perform(node, put, {record.data(), record.size(), payload.keep, nullptr}, done);
}

void Requests::cancel(uint64_t pid, uint64_t number) {
    auto known = ids_.find({pid, number});
    if (known == ids_.end()) return;  // the answer is under way
    auto found = asked_.find(known->second);
    Asked asked = found->second;
    ids_.erase(known);
    if (asked.node == own_node_) {
        asked_.erase(found);
        guests_.cancel(asked.waiting);
    } else {
        found->second.cancelled = true;  // what it gives is undone
        Note note;
        note.number = found->first;
        sessions_.send(asked.node, What::CancelOperation, note);
    }
    deliver(asked, {kCancelled, {}, {}});
}

void Requests::finish(uint64_t id, Outcome outcome) {
    auto found = asked_.find(id);
    if (found == asked_.end()) return;
    Asked asked = std::move(found->second);
    asked_.erase(found);
    if (asked.cancelled) return undo(asked, outcome);
    ids_.erase({asked.operation.pid, asked.operation.number});
    if (traced && asked.node != own_node_ && !asked.done)
        events_.add({Report::Kind::Operated,
                     asked.node,
                     asked.operation.pid,
                     static_cast<uint64_t>(asked.since),
                     {},
                     false,
                     kOperations[static_cast<size_t>(asked.operation.what)],
                     {}});
    deliver(asked, std::move(outcome));
}

void Requests::deliver(const Asked& asked, Outcome outcome, int tries) {
    if (asked.done) return asked.done(std::move(outcome));
    if (asked.operation.silent) return;
    if (!asked.operation.answers.offset) {  // the agent itself
        if (outcome.kind == kResult)
            events_.add({Report::Kind::Outcome,
                         asked.node,
                         asked.operation.number,
                         outcome.result.value,
                         {},
                         outcome.result.done != 0,
                         {},
                         {}});
        else if (outcome.kind == kError)
            events_.add({Report::Kind::Failed,
                         asked.node,
                         asked.operation.number,
                         0,
                         {},
                         false,
                         std::string(outcome.payload.view()),
                         {}});
        else if (outcome.kind != kCancelled)
            events_.add({Report::Kind::Got,
                         asked.node,
                         asked.operation.number,
                         outcome.kind,
                         {},
                         true,
                         {},
                         std::move(outcome.payload)});
        return;
    }
    Arena& a = arena();
    Handle answers = asked.operation.answers;
    Payload payload = outcome.payload;
    if (outcome.kind == kResult)
        payload = {reinterpret_cast<const char*>(&outcome.result), sizeof outcome.result, nullptr, nullptr};
    Status status = Status::Destroyed;
    try {
        Bounded bounded(kLocked);
        if (is_a(Kind::Channel, answers))
            status =
                put_message(a, *a.at<Channel>(answers.offset), outcome.kind, payload, asked.operation.number);
    } catch (const OutOfMemory&) {
        status = Status::Busy;
    } catch (const StillLocked&) {
        status = Status::Busy;
    }
    if (status == Status::Busy && tries < kDeliveries) {
        loop_.later(std::min(kLocked << std::min(tries, 5), kLockedLong),
                    [this, asked, outcome, tries] { deliver(asked, outcome, tries + 1); });
        return;
    }
    if (status != Status::Ok && outcome.kind != kCancelled) undo(asked, outcome);
}

// Undoes what was done for a process that does not wait for it any more, so that no lock stays acquired and
// no message is lost.
void Requests::undo(const Asked& asked, const Outcome& outcome) {
    auto reverse = reverse_of(asked.operation, outcome);
    if (!reverse) return;
    if (asked.node != own_node_ && !contacts_.count(asked.operation.pid)) {
        // Its end, which that node learns of, releases the lock: another may hold it then.
        if (reverse->what == Do::LockRelease) return;
        reverse->pid = 0;
    }
    submit(*reverse, outcome.payload);
}

// ---- between nodes

void Requests::asked(Node node, std::string_view body, Payload& payload) {
    Operation operation = operation_of(body);
    if (operation.object.node() != own_node_) throw Invalid("an operation on an object of another node");
    uint64_t id = operation.number;
    bool silent = operation.silent != 0;
    uint64_t epoch = sessions_.epoch(node);
    uint64_t waiting =
        perform(node, operation, payload, [this, node, id, silent, epoch, operation](Outcome outcome) {
            serving_.erase({node, id});
            if (silent || sessions_.epoch(node) != epoch) return;
            Answered answered{id, outcome.kind, 0, outcome.result};
            // What is lost with the connection is undone, unless the node is lost too.
            auto reversed = reverse_of(operation, outcome);
            std::function<void()> lost;
            if (reversed)
                lost = [this, node, reversed = *reversed, payload = outcome.payload] {
                    guests_.perform(node, reversed, payload, [](Outcome) {});
                };
            sessions_.send(node, What::Answer,
                           std::string(reinterpret_cast<const char*>(&answered), sizeof answered),
                           std::move(outcome.payload), false, std::move(lost));
        });
    if (waiting) serving_[{node, id}] = waiting;
}

void Requests::answered(std::string_view body, Payload& payload) {
    Answered answered;
    if (body.size() < sizeof answered) throw Invalid("an answer that is cut off");
    memcpy(&answered, body.data(), sizeof answered);
    if (payload.size && !payload.keep) payload = Payload::of(std::string(payload.view()));
    finish(answered.id, {answered.kind, answered.result, std::move(payload)});
}

void Requests::cancelled(Node node, uint64_t number) {
    auto found = serving_.find({node, number});
    if (found == serving_.end()) return;  // the answer is under way
    guests_.cancel(found->second);
    serving_.erase({node, number});
    Answered answered{number, kCancelled, 0, {}};
    sessions_.send(node, What::Answer,
                   std::string(reinterpret_cast<const char*>(&answered), sizeof answered));
}

void Requests::epoch_ended(Node node) {
    std::vector<uint64_t> waiting;
    for (auto it = serving_.lower_bound({node, 0}); it != serving_.end() && it->first.first == node;) {
        waiting.push_back(it->second);
        it = serving_.erase(it);
    }
    for (uint64_t each : waiting) guests_.cancel(each);
}

void Requests::fail(Node node, uint64_t before_epoch, const std::string& text) {
    std::vector<uint64_t> ids;
    for (auto& [id, asked] : asked_)
        if (asked.node == node && asked.epoch < before_epoch) ids.push_back(id);
    for (uint64_t id : ids) finish(id, Outcome::failed({"NodeLostError", text}));
}

void Requests::lost(Node node, const std::string& text) {
    lost_[node] = text;
    fail(node, UINT64_MAX, text);
}

void Requests::left(uint64_t pid) {
    std::vector<uint64_t> own;
    for (auto it = ids_.lower_bound({pid, 0}); it != ids_.end() && it->first.first == pid; ++it)
        own.push_back(it->first.second);
    for (uint64_t number : own) cancel(pid, number);
    auto found = contacts_.find(pid);
    if (found == contacts_.end()) return;
    auto nodes = std::move(found->second);
    contacts_.erase(found);
    Note note;
    note.number = pid;
    for (Node node : nodes)
        sessions_.send(node, What::Left, std::string(reinterpret_cast<const char*>(&note), sizeof note), {},
                       true);
}

bool Requests::waits(Node node) const {
    auto serving = serving_.lower_bound({node, 0});
    return (serving != serving_.end() && serving->first.first == node) ||
           std::any_of(asked_.begin(), asked_.end(), [&](auto& item) { return item.second.node == node; });
}

std::vector<Requests::Pending> Requests::pending() const {
    std::vector<Pending> result;
    for (auto& [id, asked] : asked_)
        if (!asked.cancelled && !asked.done)
            result.push_back({asked.operation.pid, asked.node, asked.operation.what,
                              asked.operation.object.offset, asked.since});
    return result;
}

}  // namespace dragon::wire
