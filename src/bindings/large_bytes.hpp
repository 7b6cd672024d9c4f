// Bytes objects that may be large.
#pragma once

#include "common.hpp"

namespace dragon::py {

// Returns a new reference to a bytes object that is still to be filled, or a null pointer with an exception
// set. For a large object huge pages are requested: the kernel takes longer to provide small pages than the
// copy into them takes.
PyObject* new_bytes(Py_ssize_t size);

// Copies of at least this many bytes are done without the GIL.
inline constexpr size_t kCopyWithoutGil = 256 * 1024;

// memcpy(), without the GIL for large sizes.
void copy(void* to, const void* from, size_t size);

void bind_large_bytes(nb::module_& m);

}  // namespace dragon::py
