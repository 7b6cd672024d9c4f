/* The session of two agents, as in src/wire/sessions.cpp: numbers, acknowledgements, connections, epochs, kept frames.
 *
 * Agent 0 sends FRAMES frames, of which the second is kept; agent 1 acknowledges. At any moment a connection may be
 * made, one side may find it broken, which loses what is on its way, and one side may end the epoch. Two
 * connections may be open at a time, and one side may still read what the other one no longer writes.
 *
 * Each frame is handled once at most, in order and without a gap in an epoch; a kept frame is handled; a frame of which
 * the sender learns that it is lost was not handled, and one of which it does not was. At rest, with a connection,
 * nothing is left to be done.
 *
 * The macros leave a part out on purpose: spin must find what goes wrong then.
 *   NO_NUMBERS   a frame is handled again if it comes again
 *   NO_RESUME    the next connection does not begin with what is not acknowledged
 *   NO_EPOCH     frames that were sent in an earlier epoch are handled
 *   NO_KEPT      kept frames have no numbers of their own
 *   NO_REPEAT    a side does not write what it has handled again when it goes on over another connection
 *   ANY_LINK     what was handled counts as acknowledged whatever connection says so, and not only the one in use
 *   ONE_BEFORE   a side says how much it has handled of the last epoch before only, not of those before it
 */
#define FRAMES 2
#define CONNECTIONS 2
#define BREAKS 2
#define EPOCHS 2
#define KEPT 2          /* the number of the kept frame */

#define STATE 1
#define DATA 2
#define AT(i, c) (2 * (i) + (c))

typedef Side {
    byte epoch, handled_in[2], last, handled, acknowledged, kept_handled, link;
    bool was_connected
}
Side side[2];
bool open[4], due[4];
byte heard_epoch[4], next[2];
/* to agent 1 and to agent 0: STATE, epoch, what was handled in epochs 0 and 1, and in this one; or DATA, number, value, kept */
chan to_1[2] = [2] of { byte, byte, byte, byte, byte };
chan to_0[2] = [2] of { byte, byte, byte, byte, byte };

/* What agent 0 has sent: the numbers go on from `first`. */
byte sent = 0, first = 1, value[4];
byte unsure = 0, unsure_epoch[4], unsure_number[4], unsure_value[4];
bool got[5], lost[5];
byte produced = 0, latest = 0, made = 0, breaks = 0, epochs = 0;
byte i, j, kept;

inline use(me, c) {             /* c: the connection and 1, or 0 for none */
    side[me].link = c;
#ifndef NO_REPEAT
    if :: c != 0 -> due[AT(me, c - 1)] = true :: else fi;
#endif
    if
    :: me == 0 && c != 0 ->
#ifdef NO_RESUME
        next[c - 1] = side[0].last + 1
#else
        next[c - 1] = (sent > 0 -> first : side[0].last + 1)
#endif
    :: else
    fi
}

/* What has not been read by then is lost. */
inline broke(me, c) {
    open[AT(me, c)] = false; due[AT(me, c)] = false; heard_epoch[AT(me, c)] = 0;
    do
    :: me == 0 && nempty(to_0[c]) -> to_0[c] ? _, _, _, _, _
    :: me == 1 && nempty(to_1[c]) -> to_1[c] ? _, _, _, _, _
    :: (me == 0 && empty(to_0[c])) || (me == 1 && empty(to_1[c])) -> break
    od;
    if
    :: side[me].link == c + 1 ->
        if
        :: open[AT(me, 0)] -> use(me, 1)
        :: !open[AT(me, 0)] && open[AT(me, 1)] -> use(me, 2)
        :: else -> use(me, 0)
        fi
    :: else
    fi
}

inline end_epoch(me, new, besides) {    /* besides: the connection and 1 that said so, or 0 */
    if
    :: side[me].epoch < 2 ->
#ifdef ONE_BEFORE
        side[me].handled_in[0] = side[me].handled; side[me].handled_in[1] = side[me].handled
#else
        side[me].handled_in[side[me].epoch] = side[me].handled
#endif
    :: else
    fi;
    side[me].handled = 0; side[me].acknowledged = 0;
    if
    :: me == 0 ->
        i = 0; kept = 0;
        do
        :: i < sent ->
            if
            :: value[i] == KEPT -> value[0] = KEPT; kept = 1
            :: else ->
                unsure_epoch[unsure] = side[0].epoch; unsure_number[unsure] = first + i;
                unsure_value[unsure] = value[i]; unsure++
            fi;
            i++
        :: else -> break
        od;
        sent = kept; first = 1; side[0].last = kept
    :: else
    fi;
    side[me].epoch = new;
    j = 0;
    do
    :: j < CONNECTIONS ->
        if
        :: besides != 0 && j + 1 != besides && open[AT(me, j)] -> broke(me, j)
        :: else
        fi;
        due[AT(me, j)] = open[AT(me, j)];
        j++
    :: else -> break
    od;
    side[me].was_connected = open[AT(me, 0)] || open[AT(me, 1)];
    use(me, side[me].link)
}

/* Handles a state that came over connection c. */
inline hear_state(me, c, its, in_0, in_1) {
    heard_epoch[AT(me, c)] = its;
    if
    :: its > side[me].epoch -> end_epoch(me, its, c + 1)
    :: else
    fi;
    if
    :: me == 0 && its == side[0].epoch ->
        do
        :: unsure > 0 ->
            unsure--;
            if
            :: unsure_number[unsure] > (unsure_epoch[unsure] == 0 -> in_0 : in_1) ->
                assert(!got[unsure_value[unsure]]); lost[unsure_value[unsure]] = true
            :: else -> assert(got[unsure_value[unsure]])
            fi
        :: else -> break
        od
    :: else
    fi
}

inline hear_data(c, number, its_value, is_kept) {
    if
#ifdef NO_EPOCH
    :: true ->
#else
    :: heard_epoch[AT(1, c)] == side[1].epoch ->
#endif
#ifdef NO_EPOCH
        if :: number > side[1].handled + 1 -> number = side[1].handled + 1 :: else fi;
#endif
        assert(number <= side[1].handled + 1);
        if
#ifdef NO_NUMBERS
        :: true ->
#else
        :: number == side[1].handled + 1 ->
#endif
            side[1].handled = (number > side[1].handled -> number : side[1].handled);
            if
#ifndef NO_KEPT
            :: is_kept && side[1].kept_handled == 1     /* it was handled in an earlier epoch */
            :: !is_kept || side[1].kept_handled == 0 ->
#else
            :: true ->
#endif
                if :: is_kept -> side[1].kept_handled = 1 :: else fi;
                assert(!got[its_value] && !lost[its_value] && its_value > latest);
                got[its_value] = true; latest = its_value
            fi
        :: else
        fi
    :: else
    fi
}

inline hear_acknowledged(c, number) {
    if
    :: heard_epoch[AT(0, c)] == side[0].epoch ->
        assert(number <= side[0].last);
        do
        :: sent > 0 && first <= number ->
            first++; sent--;
            value[0] = value[1]; value[1] = value[2]; value[2] = value[3]; value[3] = 0
        :: else -> break
        od
    :: else
    fi
}

/* What the other side has closed is found broken at some time; the first of the two to do so is counted. */
#define CAN_BREAK(me, c) (open[AT(me, c)] && (!open[AT(1 - me, c)] || breaks < BREAKS))
#define BREAK(me, c) breaks = breaks + open[AT(1 - me, c)]; broke(me, c)

#define EMPTY(c) (empty(to_0[c]) && empty(to_1[c]) && !due[AT(0, c)] && !due[AT(1, c)])
#define LINK (side[0].link - 1)
#define QUIET (side[0].link != 0 && side[1].link == side[0].link && EMPTY(0) && EMPTY(1) && \
               next[LINK] >= first + sent && side[1].acknowledged == side[1].handled)

active proctype wires() {
    byte me, c, a, b, d, e;
    do
    /* agent 0 queues a frame */
    :: atomic { produced < FRAMES ->
        produced++; value[sent] = produced; sent++; side[0].last++ }
    /* a connection is made */
    :: atomic { made < CONNECTIONS ->
        c = made; made++;
        for (me : 0 .. 1) {
            open[AT(me, c)] = true; due[AT(me, c)] = true; side[me].was_connected = true;
            if :: side[me].link == 0 -> use(me, c + 1) :: else fi
        }
        c = 0; me = 0 }
    /* a side finds a connection broken; the other side does so later */
    :: atomic { CAN_BREAK(0, 0) -> BREAK(0, 0) }
    :: atomic { CAN_BREAK(0, 1) -> BREAK(0, 1) }
    :: atomic { CAN_BREAK(1, 0) -> BREAK(1, 0) }
    :: atomic { CAN_BREAK(1, 1) -> BREAK(1, 1) }
    /* a side ends the epoch */
    :: atomic { epochs < EPOCHS -> epochs++; end_epoch(0, side[0].epoch + 1, 0) }
    :: atomic { epochs < EPOCHS -> epochs++; end_epoch(1, side[1].epoch + 1, 0) }
    /* a side writes */
    :: atomic { due[AT(0, 0)] && nfull(to_1[0]) -> a = 0; goto state_0 }
    :: atomic { due[AT(0, 1)] && nfull(to_1[1]) -> a = 1;
state_0:
        due[AT(0, a)] = false;
        if :: open[AT(1, a)] -> to_1[a] ! STATE, side[0].epoch, side[0].handled_in[0], side[0].handled_in[1], 0 :: else fi;
        a = 0 }
    :: atomic { due[AT(1, 0)] && nfull(to_0[0]) -> a = 0; goto state_1 }
    :: atomic { due[AT(1, 1)] && nfull(to_0[1]) -> a = 1;
state_1:
        due[AT(1, a)] = false;
#ifdef ANY_LINK
        side[1].acknowledged = side[1].handled;
#else
        if :: side[1].link == a + 1 -> side[1].acknowledged = side[1].handled :: else fi;
#endif
        if
        :: open[AT(0, a)] -> to_0[a] ! STATE, side[1].epoch, side[1].handled_in[0], side[1].handled_in[1], side[1].handled
        :: else
        fi;
        a = 0 }
    :: atomic { side[0].link != 0 && !due[AT(0, side[0].link - 1)] && nfull(to_1[side[0].link - 1]) &&
                sent > 0 && next[side[0].link - 1] < first + sent ->
        a = side[0].link - 1;
        if :: next[a] < first -> next[a] = first :: else fi;
        b = value[next[a] - first];
        if :: open[AT(1, a)] -> to_1[a] ! DATA, next[a], b, (b == KEPT -> 1 : 0), 0 :: else fi;
        next[a]++; a = 0; b = 0 }
    :: atomic { side[1].link != 0 && side[1].acknowledged < side[1].handled && !due[AT(1, side[1].link - 1)] ->
        due[AT(1, side[1].link - 1)] = true }
    /* a side reads */
    :: atomic { open[AT(1, 0)] && nempty(to_1[0]) -> c = 0; goto read_1 }
    :: atomic { open[AT(1, 1)] && nempty(to_1[1]) -> c = 1;
read_1:
        if
        :: to_1[c] ? STATE, a, b, d, e -> hear_state(1, c, a, b, d)
        :: to_1[c] ? DATA, a, b, d, e -> hear_data(c, a, b, d)
        fi;
        a = 0; b = 0; c = 0; d = 0; e = 0 }
    :: atomic { open[AT(0, 0)] && nempty(to_0[0]) -> c = 0; goto read_0 }
    :: atomic { open[AT(0, 1)] && nempty(to_0[1]) -> c = 1;
read_0:
        to_0[c] ? STATE, a, b, d, e;
        hear_state(0, c, a, b, d);
        hear_acknowledged(c, e);
        a = 0; b = 0; c = 0; d = 0; e = 0 }
    /* at rest */
    :: atomic { QUIET -> assert(sent == 0 && unsure == 0 && (got[KEPT] || produced < KEPT)); goto end }
    od;
end:
    skip
}
