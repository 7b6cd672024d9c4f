// The state of users' queues and pools, as other processes see it.
#include <map>
#include <tuple>

#include "channel.hpp"
#include "layout.hpp"
#include "sync.hpp"

namespace dragon {

uint32_t Arena::next_queue() { return header().queues.fetch_add(1) + 1; }

std::vector<Offset> Arena::find_queues(uint64_t first, uint64_t most, uint64_t& next) const {
    size_t c = class_of_size(sizeof(Channel));
    uint64_t carved = header().classes[c].carved.load(), end = std::min(carved, first + most);
    std::vector<Offset> result;
    const Meta* m = &meta(region_start(c)) + first;
    for (uint64_t i = first; i < end; ++i, ++m) {
        Offset block = region_start(c) + i * class_size(c);
        if (m->kind() == Kind::Channel && m->owner == 0 && at<Channel>(block)->origin().number)
            result.push_back(block);
    }
    next = end < carved ? end : 0;
    return result;
}

std::vector<QueueInfo> Arena::queues(const std::vector<Offset>& offsets) const {
    std::map<Offset, std::pair<uint32_t, uint32_t>> waiting;
    for (uint32_t i = 0; i < header().slots_used.load(); ++i) {
        Slot& s = header().slots[i];
        if (s.state.load() != kLive) continue;
        for (Wait& w : s.waits) {
            uint64_t what = w.what.load(std::memory_order_relaxed);
            if (!what) continue;
            Purpose purpose = purpose_of(what);
            auto& [getting, putting] = waiting[what & Wait::kObject];
            getting += purpose == Purpose::Get || purpose == Purpose::Read;
            putting += purpose == Purpose::Put;
        }
    }
    std::vector<QueueInfo> result;
    for (Offset offset : offsets) {
        Handle handle{offset, meta(offset).acquire_generation()};
        if (!exists(handle) || meta(offset).kind() != Kind::Channel) continue;
        const Channel& channel = *at<Channel>(offset);
        Origin origin = channel.origin();
        QueueInfo q{};
        q.offset = offset;
        q.number = origin.number;
        q.maker = origin.maker;
        q.place = place_of(offset);
        q.size = channel.size();
        q.taken = channel.taken();
        q.bytes = channel.bytes();
        q.attached = channel.references.load() & UINT32_MAX;
        q.pool = exists(origin.results) && exists(origin.doing);
        if (q.pool) {
            const Channel& results = *at<Channel>(origin.results.offset);
            const Words& doing = *at<Words>(origin.doing.offset);
            q.done = results.taken() + results.size();
            // The block may belong to another object by now, so its count is not trusted.
            size_t room = (capacity(origin.doing.offset) - sizeof(Words)) / sizeof(uint64_t);
            for (uint32_t i = 0, count = doing.count(); i < count && i < room; ++i) {
                uint64_t task = doing.at(i).load();
                // The largest values stand for no task: the end of the tasks, or the start of a worker.
                q.running += task != 0 && task < UINT64_MAX - 2;
            }
            if (!exists(origin.results) || !exists(origin.doing)) continue;
        }
        // The values are valid only if the channel existed all the while.
        if (!q.number || channel.destroyed.load() || !exists(handle)) continue;
        if (auto w = waiting.find(offset); w != waiting.end()) std::tie(q.getting, q.putting) = w->second;
        result.push_back(q);
    }
    return result;
}

}  // namespace dragon
