// Calls into Python that survive the end of the interpreter.
#pragma once

namespace dragon::py {

// Calls `f(context)`. If Python ends the thread in this call, with pthread_exit(), the thread waits for the
// end of the process instead.
void call_python(void (*f)(void*), void* context);

// Calls into Python, or takes the GIL. `f` may only use functions of Python's C API, must have nothing to
// destroy and must not throw.
//
// Before 3.14 Python ends a daemon thread that does so while the interpreter ends. That would unwind the
// stack, although it must not be unwound through noexcept functions, as those of nanobind and all destructors
// are, and it would drop references without the GIL.
template <class F>
auto in_python(F f) {
    using Result = decltype(f());
    struct Call {
        F f;
        Result result;
    } call{f, {}};
    call_python([](void* c) { static_cast<Call*>(c)->result = static_cast<Call*>(c)->f(); }, &call);
    return call.result;
}

}  // namespace dragon::py
