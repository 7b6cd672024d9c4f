// The waits of processes, for `dragon doctor`, and the state of queues, for telemetry.
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>

#include "common.hpp"

namespace dragon::py {

void report_myself() {
    if (!python.on_inquiry) return;
    try {
        nb::object done = nb::steal(in_python([] { return PyObject_CallNoArgs(python.on_inquiry); }));
        if (!done.is_valid()) throw nb::python_error();
    } catch (nb::python_error& e) {
        if (!e.matches(PyExc_Exception)) throw;  // Ctrl-C
        e.discard_as_unraisable("the report for dragon doctor");
    }
}

namespace {

const char* name_of(Purpose purpose) {
    static const char* const names[] = {"", "get", "put", "read", "join", "acquire", "wait", "task"};
    auto i = static_cast<size_t>(purpose);
    return i < std::size(names) ? names[i] : "";
}

const char* name_of(Kind kind) {
    static const char* const names[] = {"",      "",          "Channel", "Lock", "Semaphore",
                                        "Event", "Condition", "Words",   ""};
    auto i = static_cast<size_t>(kind);
    return i < std::size(names) ? names[i] : "";
}

void add_state(nb::dict& d, Arena& a, const WaitInfo& w) {
    if (w.kind == Kind::Channel) {
        d["size"] = a.at<Channel>(w.object)->size();
        d["capacity"] = a.at<Channel>(w.object)->capacity();
    } else if (w.kind == Kind::Lock) {
        OwnerId owner = a.at<Lock>(w.object)->owner();
        d["holder"] = owner ? a.pid_of(owner) : 0;
    } else if (w.kind == Kind::Semaphore) {
        d["value"] = a.at<Semaphore>(w.object)->value();
    } else if (w.kind == Kind::Event) {
        d["is_set"] = a.at<Event>(w.object)->is_set();
    }
}

nb::list waits() {
    Arena& a = arena();
    nb::list result;
    std::map<Offset, nb::object> attached;
    for (const WaitInfo& w : a.waits()) {
        nb::object& pids = attached[w.object];
        if (!pids.is_valid()) pids = nb::cast(*w.attached);
        nb::dict d;
        d["pid"] = w.pid;
        d["thread"] = w.thread;
        d["purpose"] = name_of(w.purpose);
        d["kind"] = name_of(w.kind);
        d["offset"] = w.object;
        d["place"] = w.place;
        d["seconds"] = static_cast<double>(now() - w.since) / 1e9;
        d["attached"] = pids;
        add_state(d, a, w);
        result.append(d);
    }
    return result;
}

nb::list listed(const std::vector<SpanInfo>& spans) {
    nb::list result;
    for (const SpanInfo& s : spans)
        result.append(
            nb::make_tuple(s.pid, s.thread, name_of(s.purpose), name_of(s.kind), s.what, s.start, s.end));
    return result;
}

nb::tuple take_spans(uint64_t next) {
    uint64_t lost;
    nb::list spans = listed(arena().take_spans(next, lost));
    return nb::make_tuple(spans, next, lost);
}

nb::list running_tasks() { return listed(arena().running_tasks()); }

std::tuple<std::vector<Offset>, uint64_t> find_queues(uint64_t first, uint64_t most) {
    uint64_t next;
    auto found = arena().find_queues(first, most, next);
    return {std::move(found), next};
}

nb::list queues(const std::vector<Offset>& offsets) {
    nb::list result;
    for (const QueueInfo& q : arena().queues(offsets)) {
        nb::dict d;
        d["offset"] = q.offset;
        d["number"] = q.number;
        d["maker"] = q.maker;
        d["place"] = q.place;
        d["size"] = q.size;
        d["taken"] = q.taken;
        d["bytes"] = q.bytes;
        d["getting"] = q.getting;
        d["putting"] = q.putting;
        if (q.pool) {
            d["attached"] = q.attached;
            d["running"] = q.running;
            d["done"] = q.done;
        }
        result.append(d);
    }
    return result;
}

}  // namespace

void bind_inspection(nb::module_& m) {
    m.def("waits", &waits, "Return what every process of the run waits for, as far as recorded.");
    m.def(
        "trace", [](bool on) { arena().trace(on); }, nb::arg("on"),
        "Start or stop recording tasks, and waits of 10 us and more when they end.");
    m.def("tracing", [] { return arena().tracing(); }, "Whether waits and tasks are recorded.");
    m.def(
        "begin_task",
        [](uint64_t which) {
            Nanoseconds start = now();
            arena().begin_task(which, thread_id(), start);
            return start;
        },
        nb::arg("which"),
        "Record that this thread begins a task, identified by an even number below 2**56. "
        "Returns the time, in nanoseconds of the monotonic clock.");
    m.def(
        "end_task", [](uint64_t which, Nanoseconds start) { arena().end_task(which, thread_id(), start); },
        nb::arg("which"), nb::arg("start"),
        "Record that this thread has ended the task that it began at `start`. `which` is "
        "its number, or the next, odd one if it failed.");
    m.def("running_tasks", &running_tasks, "Return the tasks that processes run now.");
    m.def("take_spans", &take_spans, nb::arg("next"),
          "Return the spans recorded from the number `next` on, the number for the next "
          "call, and how many were lost.");
    m.def("find_queues", &find_queues, nb::arg("first"), nb::arg("most"),
          "Return the offsets of users' queues and pools among `most` blocks from index "
          "`first` on, and the next index.");
    m.def("queues", &queues, nb::arg("offsets"), "Return the states of those queues that still exist.");
    m.def(
        "place_of", [](Offset object) { return arena().place_of(object); }, nb::arg("offset"),
        "Return where the object at that offset was made, as train.py:12; empty if that is unknown.");
    m.def(
        "inquire", [](double seconds) { arena().inquire(deadline_after(seconds)); }, nb::arg("seconds"),
        "Make every waiting process call its on_inquiry() callback once a second, for "
        "that many seconds.");
    m.def(
        "asked", [] { return arena().asked(); },
        "Return whether stacks of waiting processes are requested at the moment.");
    m.def(
        "on_inquiry", [](nb::object f) { python.on_inquiry = f.release().ptr(); }, nb::arg("callback"),
        "Set the function that this process calls when stacks of waiting processes are "
        "requested.");
}

}  // namespace dragon::py
