#pragma once

#include "../store/shard.hpp"
#include "common.hpp"

namespace dragon::py {

inline std::string_view to_text(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

// What a client's Record refers to, as long as this exists.
struct Given {
    nb::bytes head;
    std::vector<Memory> blobs;
    store::Record record;

    explicit Given(nb::handle object) : head(nb::cast<nb::bytes>(object.attr("head"))) {
        record.head = to_text(head);
        for (nb::handle blob : object.attr("blobs")) record.blobs.push_back(blobs.emplace_back(blob).text());
    }
};

}  // namespace dragon::py
