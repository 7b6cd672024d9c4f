#pragma once

#include <nanobind/nanobind.h>

namespace dragon::py {

void bind_fork_server(nanobind::module_& m);

}  // namespace dragon::py
