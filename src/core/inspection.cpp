// What processes wait for, as other processes see it.
#include <functional>
#include <map>

#include "layout.hpp"
#include "system_calls.hpp"

namespace dragon {

int Arena::begin_wait(Offset object, Purpose purpose, uint64_t thread, Nanoseconds since) {
    Slot& s = slot(self());
    uint64_t what = object | static_cast<uint64_t>(purpose) << Wait::kPurposeShift;
    for (int place = 0; Wait& w : s.waits) {
        uint64_t nothing = 0;
        if (w.what.load(std::memory_order_relaxed) == 0 && w.what.compare_exchange_strong(nothing, what)) {
            w.thread.store(thread, std::memory_order_relaxed);
            w.since.store(since, std::memory_order_release);
            return place;
        }
        ++place;
    }
    return -1;
}

void Arena::end_wait(int place) {
    if (place < 0) return;
    Wait& w = slot(self()).waits[place];
    if (tracing()) {
        uint64_t what = w.what.load(std::memory_order_relaxed);
        note_span(slot(self()).pid.load(), what & Wait::kObject, purpose_of(what), w.thread.load(),
                  w.since.load());
    }
    w.clear();
}

void Arena::begin_task(uint64_t which, uint64_t thread, Nanoseconds start) {
    begin_wait(which, Purpose::Task, thread, start);
}

void Arena::end_task(uint64_t which, uint64_t thread, Nanoseconds start) {
    Slot& s = slot(self());
    note_span(s.pid.load(), which, Purpose::Task, thread, start);
    for (Wait& w : s.waits)
        if (w.is_task() && w.thread.load() == thread && w.since.load() == start) w.clear();
}

void Arena::fail_tasks(Slot& s) {
    for (Wait& w : s.waits) {
        Nanoseconds since = w.since.load();
        if (!w.is_task() || since == 0) continue;
        uint64_t which = (w.what.load() & Wait::kObject) | kTaskFailed;
        if (tracing()) note_span(s.pid.load(), which, Purpose::Task, w.thread.load(), since);
        w.clear();
    }
}

std::vector<SpanInfo> Arena::running_tasks() const {
    std::vector<SpanInfo> result;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        const Slot& s = header().slots[i];
        if (s.state.load() != kLive) continue;
        for (const Wait& w : s.waits) {
            uint64_t what = w.what.load();
            Nanoseconds since = w.since.load();
            uint64_t thread = w.thread.load();
            if (purpose_of(what) == Purpose::Task && since != 0 && w.since.load() == since)
                result.push_back(
                    {s.pid.load(), thread, Purpose::Task, Kind::Free, what & Wait::kObject, since, 0});
        }
    }
    return result;
}

void Arena::trace(bool on) {
    Offset spans = kTables / kPage * kPage;
    if (on && allocate_bytes(fd_, spans, sizeof(Header) - spans) != 0)
        throw OutOfMemory("no memory for a trace (" + std::to_string(sizeof(Header) - spans) + " bytes)");
    header().tracing = on;
}

bool Arena::tracing() const { return header().tracing.load(std::memory_order_relaxed) != 0; }

void Arena::note_span(pid_t pid, uint64_t what, Purpose purpose, uint64_t thread, Nanoseconds start) {
    constexpr Nanoseconds kShortest = 10'000;
    Nanoseconds end = now();
    if (end - start < kShortest) return;
    uint64_t number = header().spans_noted.fetch_add(1);
    Span& s = header().spans[number % kSpans];
    s.number.store(0);
    s.what = what | static_cast<uint64_t>(purpose) << Wait::kPurposeShift;
    s.thread = thread;
    s.start = start;
    s.end = end;
    s.pid = pid;
    bool is_object = purpose != Purpose::Task && what >= region_start(0) && what < size_ - sizeof(Object);
    s.kind = static_cast<uint32_t>(is_object ? meta(what).kind() : Kind::Free);
    s.number.store(number + 1);
}

std::vector<SpanInfo> Arena::take_spans(uint64_t& next, uint64_t& lost) const {
    // A span that is still incomplete when this many follow it belongs to a process that was killed.
    constexpr uint64_t kUnfinished = 256;
    std::vector<SpanInfo> result;
    uint64_t noted = header().spans_noted.load();
    lost = 0;
    if (noted - next > kSpans) {
        lost = noted - kSpans - next;
        next = noted - kSpans;
    }
    for (; next < noted; ++next) {
        const Span& s = header().spans[next % kSpans];
        uint64_t number = s.number.load();
        SpanInfo found{s.pid,
                       s.thread,
                       purpose_of(s.what.load()),
                       static_cast<Kind>(s.kind.load()),
                       s.what & Wait::kObject,
                       s.start,
                       s.end};
        if (number == next + 1 && s.number.load() == number)
            result.push_back(found);
        else if (number <= next && noted - next < kUnfinished)
            break;
        else
            ++lost;
    }
    return result;
}

std::vector<WaitInfo> Arena::waits() const {
    std::vector<WaitInfo> result;
    std::map<Offset, std::shared_ptr<std::vector<pid_t>>> attached;
    auto each_slot = [&](auto visit) {
        for (uint32_t i = 0; i < header().slots_used.load(); ++i)
            if (Slot& s = header().slots[i]; s.state.load() == kLive && s.pid.load() != 0) visit(s);
    };
    auto inside = [&](Offset o, size_t size) { return o >= region_start(0) && o < size_ - size; };
    each_slot([&](Slot& s) {
        for (Wait& w : s.waits) {
            uint64_t what = w.what.load();
            Offset object = what & Wait::kObject;
            if (!what || w.is_task() || !inside(object, sizeof(Object))) continue;
            if (auto& found = attached[object]; !found) found = std::make_shared<std::vector<pid_t>>();
            result.push_back({s.pid.load(),
                              w.thread.load(),
                              purpose_of(what),
                              object,
                              meta(object).kind(),
                              place_of(object),
                              w.since.load(),
                              {}});
        }
    });
    each_slot([&](Slot& s) {
        // The process may change its table meanwhile: the values are checked, and at most 1000 chunks are
        // followed.
        Offset c = s.attachments;
        for (int i = 0; i < 1000 && c && inside(c, sizeof(Chunk)); ++i, c = at<Chunk>(c)->next)
            for (Entry& e : at<Chunk>(c)->entries) {
                uint32_t kind = __atomic_load_n(&e.role_and_kind, __ATOMIC_RELAXED) >> 8;
                auto found = attached.find(e.object);
                if (found == attached.end() || kind == kInFlight) continue;
                std::vector<pid_t>& pids = *found->second;
                if (pids.empty() || pids.back() != s.pid.load()) pids.push_back(s.pid.load());
            }
    });
    for (WaitInfo& w : result) w.attached = attached[w.object];
    return result;
}

uint16_t Arena::intern(std::string_view text) {
    if (text.empty()) return 0;
    constexpr size_t kProbes = 16, kLength = sizeof(Place::text) - 1;
    if (text.size() > kLength) text.remove_prefix(text.size() - kLength);
    size_t first = std::hash<std::string_view>()(text);
    for (size_t i = first; i < first + kProbes; ++i) {
        size_t number = i % (kMadeAt - 1) + 1;
        Place& p = header().places[number];
        uint32_t unused = Place::kUnused;
        if (p.state.compare_exchange_strong(unused, Place::kWriting)) {
            text.copy(p.text, kLength);
            p.state = Place::kReady;
            return static_cast<uint16_t>(number);
        }
        if (unused == Place::kReady && text == p.text) return static_cast<uint16_t>(number);
    }
    return 0;
}

const char* Arena::place_of(Offset object) const {
    if (!is_block(object)) return "";
    const Place& p = header().places[at<Object>(object)->place.load() % kMadeAt];
    return p.state.load() == Place::kReady ? p.text : "";
}

void Arena::inquire(Nanoseconds until) { header().inquiry = until; }

bool Arena::asked() const {
    Nanoseconds until = header().inquiry.load(std::memory_order_relaxed);
    return until != 0 && now() < until;
}

}  // namespace dragon
