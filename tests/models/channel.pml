/* A channel's list of messages under its lock, as in src/core/channel.cpp: one process puts, one takes, one reaps.
 *
 * At every step one process may be killed, and one stopped for ever. Whoever else wants the lock takes it from a dead
 * holder and repairs the list, or gives up at its deadline. In the end each block is free or linked, exactly once, the
 * messages are in order, and nobody waits.
 *
 * The macros change the order of steps, or leave one out, on purpose: spin must find what goes wrong then.
 *   UNLINK_FIRST    get() unlinks a block before that is marked as its own
 *   DISOWN_FIRST    put() gives a block up before it is linked
 *   UNMARKED_REPAIR who repairs does not say so, and the reaper does not wait for that
 *   NO_DEADLINE     waits for the lock do not end
 */
#define BLOCKS 3        /* blocks are 1 to 3; 0 is none */
#define PUTTER 1
#define TAKER 2
#define REAPER 3

byte lock = 0, head = 0, tail = 0, count = 0;
bool repairing = false;
byte next[4], owner[4];
bool free[4];
bool dead[4];
bool may_kill = true, may_stop = true;
byte last_taken = 0, finished = 0;

#define STEP(what)                                                  \
    if                                                              \
    :: what                                                         \
    :: atomic { may_kill -> may_kill = false; dead[me] = true; goto gone }  \
    :: atomic { may_stop -> may_stop = false; goto stopped }        \
    fi

#ifdef NO_DEADLINE
#define OR_DEADLINE
#else
#define OR_DEADLINE :: goto given_up
#endif

/* What is linked from the head on is what there is. */
inline repair() {
    STEP(block = head); found = 0; length = 0;
    do
    :: block != 0 ->
        STEP(owner[block] = 0);
        found = block; length++;
        block = next[block]
    :: else -> break
    od;
    STEP(tail = found);
    STEP(count = length);
    STEP(repairing = false)
}

inline take_lock() {
    if
    :: atomic { lock == 0 -> lock = me }
#ifdef UNMARKED_REPAIR
    :: atomic { lock != 0 && dead[lock] -> lock = me }; repair()
#else
    :: atomic { lock != 0 && dead[lock] -> lock = me; repairing = true }; repair()
#endif
    OR_DEADLINE
    fi
}

proctype putter() {
    byte me = PUTTER, block, found, length, mine;
    mine = 1;
    do
    :: mine <= BLOCKS - 1 ->
        STEP(atomic { free[mine] = false; owner[mine] = me });
        take_lock();
#ifdef DISOWN_FIRST
        STEP(owner[mine] = 0);
#endif
        STEP(next[mine] = 0);
        if
        :: head != 0 -> STEP(next[tail] = mine)
        :: else -> STEP(head = mine)
        fi;
        STEP(tail = mine);
        STEP(count++);
        STEP(owner[mine] = 0);
        STEP(lock = 0);
        mine++
    :: else -> break
    od;
given_up:
    /* Its block is still its own: it frees it. */
    if
    :: mine <= BLOCKS - 1 && owner[mine] == me -> STEP(atomic { owner[mine] = 0; free[mine] = true })
    :: else
    fi;
gone:
    atomic { finished++ };
stopped:
end_stopped:
    skip
}

proctype taker() {
    byte me = TAKER, block, found, length, mine, rounds = 0;
    do
    :: rounds < 2 ->
        rounds++;
        if
        :: count == 0 -> goto given_up
        :: else
        fi;
        take_lock();
        STEP(mine = head);
        if
        :: mine != 0 ->
            assert(!free[mine] && mine > last_taken);
#ifdef UNLINK_FIRST
            STEP(head = next[mine]);
            STEP(owner[mine] = me);
#else
            STEP(owner[mine] = me);
            STEP(head = next[mine]);
#endif
            if
            :: head == 0 -> STEP(tail = 0)
            :: else
            fi;
            STEP(count--);
            STEP(lock = 0);
            last_taken = mine;
            STEP(atomic { assert(!free[mine]); owner[mine] = 0; free[mine] = true })
        :: else -> STEP(lock = 0)
        fi
    :: else -> break
    od;
given_up:
gone:
    atomic { finished++ };
stopped:
end_stopped:
    skip
}

/* Goes through what a dead process left. It is itself neither killed nor stopped here. */
proctype reaper() {
    byte me = REAPER, block, found, length, who;
end_nobody_died:
    atomic { dead[PUTTER] || dead[TAKER] -> who = (dead[PUTTER] -> PUTTER : TAKER) };
    do
    :: atomic { lock == who -> lock = me; repairing = true };
        block = head; found = 0; length = 0;
        do
        :: block != 0 -> owner[block] = 0; found = block; length++; block = next[block]
        :: else -> break
        od;
        tail = found; count = length;
        atomic { repairing = false; lock = 0 };
        break
    :: atomic { lock != who && !repairing -> break }
    :: atomic { lock != who && repairing && !may_stop -> goto later }  /* a stopped one repairs: not now */
    od;
    /* Blocks are freed by their owner. */
    block = 1;
    do
    :: block <= BLOCKS ->
        atomic {
            if
            :: owner[block] == who -> assert(!free[block]); owner[block] = 0; free[block] = true
            :: else
            fi
        };
        block++
    :: else -> break
    od;
    /* Nobody else is at it any more: what there is, is whole. A process that was stopped may hold the lock. */
end_waiting:
    (finished == 2 && lock == 0) -> atomic {
        found = head; length = 0;
        do
        :: found != 0 -> length++; assert(!free[found] && owner[found] == 0); free[found] = true; found = next[found]
        :: else -> break
        od;
        assert(length == count);
        block = 1;
        do
        :: block <= BLOCKS -> assert(free[block]); block++
        :: else -> break
        od
    };
later:
end_done:
    skip
}

init {
    atomic {
        byte i = 1;
        do
        :: i <= BLOCKS -> free[i] = true; i++
        :: else -> break
        od;
        run putter();
        run taker();
        run reaper()
    }
}
