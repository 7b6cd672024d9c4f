// What processes wait for, seen from outside.
#include <map>

#include "layout.hpp"

namespace dragon {

int Arena::begin_wait(Offset object, Purpose purpose, uint64_t thread, Nanoseconds since) {
    Slot& s = slot(self());
    uint64_t what = object | static_cast<uint64_t>(purpose) << Wait::kPurposeShift;
    for (int place = 0; Wait& w : s.waits) {
        uint64_t nothing = 0;
        if (w.what.load(std::memory_order_relaxed) == 0 && w.what.compare_exchange_strong(nothing, what)) {
            w.since.store(since, std::memory_order_relaxed);
            w.thread.store(thread, std::memory_order_relaxed);
            return place;
        }
        ++place;
    }
    return -1;
}

void Arena::end_wait(int place) {
    if (place >= 0) slot(self()).waits[place].what.store(0, std::memory_order_relaxed);
}

std::vector<WaitInfo> Arena::waits() const {
    std::vector<WaitInfo> result;
    std::map<Offset, std::vector<pid_t>> attached;
    auto each_slot = [&](auto visit) {
        for (uint32_t i = 0; i < header().slots_used.load(); ++i)
            if (Slot& s = header().slots[i]; s.state.load() == kLive && s.pid.load() != 0) visit(s);
    };
    auto inside = [&](Offset o, size_t size) { return o >= region_start(0) && o < size_ - size; };
    each_slot([&](Slot& s) {
        for (Wait& w : s.waits) {
            uint64_t what = w.what.load();
            Offset object = what & ((uint64_t{1} << Wait::kPurposeShift) - 1);
            if (!what || !inside(object, sizeof(Object))) continue;
            attached[object];
            result.push_back({s.pid.load(),
                              w.thread.load(),
                              static_cast<Purpose>(what >> Wait::kPurposeShift),
                              object,
                              meta(object).kind(),
                              w.since.load(),
                              {}});
        }
    });
    each_slot([&](Slot& s) {
        // The process may change its table meanwhile: what is read is checked, and never followed for long.
        Offset c = s.attachments;
        for (int i = 0; i < 1000 && c && inside(c, sizeof(Chunk)); ++i, c = at<Chunk>(c)->next)
            for (Entry& e : at<Chunk>(c)->entries) {
                uint32_t kind = __atomic_load_n(&e.role_and_kind, __ATOMIC_RELAXED) >> 8;
                auto found = attached.find(e.object);
                if (found == attached.end() || kind == kInFlight) continue;
                if (found->second.empty() || found->second.back() != s.pid.load())
                    found->second.push_back(s.pid.load());
            }
    });
    for (WaitInfo& w : result) w.attached = attached[w.object];
    return result;
}

void Arena::inquire(Nanoseconds until) { header().inquiry = until; }

bool Arena::asked() const {
    Nanoseconds until = header().inquiry.load(std::memory_order_relaxed);
    return until != 0 && now() < until;
}

}  // namespace dragon
