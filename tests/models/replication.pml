/* The holders of one shard of a replicated dictionary, and the front end that decides who they are.

   What is modelled: src/dragon/agent/shards/replication.py and src/dragon/launcher/frontend.py. Nodes 0 and 1 keep the shard
   at first, node 2 is free. The holders stand in a row, in the order of their numbers. Messages between two nodes come
   in their order and as late as they like. The front end may declare a node lost at any time; that node may never hear
   of it, and goes on as before. Each write has a number of its own, which is its identity: clients may ask any node
   that believes that it decides, as often as they like, until one answers. One read asks for the newest state.

   A log is a number in base 4: of each position the write that was done there. READ is the note by which a read asks
   whether everybody has done what came before.

   What must hold: a write that was answered is in the log of the first holder that the front end knows; no holder's log
   has a write twice; and a read that is answered shows every write that was answered before it began.

   -DNO_EPOCHS takes out the check of the epoch and the sender. -DALONE has a node drop the one behind it by itself,
   without the front end. -DNO_ROUND answers a read without asking anybody. Each breaks one of the above. */

#define NODES 3
#define WRITES 2
#define READ 3
#define LONGEST 3 /* positions of a log */
#ifndef DECISIONS
#define DECISIONS 2
#endif
#define ROOM 3 /* messages from one node to another */
#define NOBODY 7

mtype = { APPLY, STATE, ACK, FILLED };

chan net[9] = [ROOM] of { mtype, byte, byte, byte, byte }; /* kind, epoch, whether to a learner, position, write or log */
chan proposals = [1] of { byte, byte }; /* epoch, holders */

byte holders[NODES]; /* as a node knows them: bits */
byte epoch[NODES];   /* the last decision that it knows */
byte log_of[NODES];
byte length[NODES];
byte through[NODES]; /* up to where the one behind has done it */
byte told[NODES];    /* up to where the one before was told so */
byte learner[NODES]; /* whom a node gives its copy */
bool complete[NODES];
byte teacher[NODES]; /* and from whom it is given one */
byte taught[NODES];  /* in which epoch */

byte decided[5]; /* the holders by each of the front end's decisions */
byte decisions = 0;
byte lost = 0;
byte lost_at[NODES];

bool answered[4];
byte before_read = 0; /* bits: the writes that were answered before it began */
byte reader = NOBODY;
byte read_at = 0;

/* Of use within a step only. */
hidden byte i, j, entry, count, since, learns, at, what;
hidden byte is_there;
hidden mtype kind;

#define BIT(n) (1 << (n))
#define HOLDS(mask, n) (((mask) >> (n)) & 1)
#define FIRST(mask) (HOLDS(mask, 0) -> 0 : (HOLDS(mask, 1) -> 1 : 2))
#define BEHIND(mask, n) (((n) < 1 && HOLDS(mask, 1)) -> 1 : (((n) < 2 && HOLDS(mask, 2)) -> 2 : NOBODY))
#define BEFORE(mask, n) (((n) > 1 && HOLDS(mask, 1)) -> 1 : (((n) > 0 && HOLDS(mask, 0)) -> 0 : NOBODY))
#define ENTRY(log, at) (((log) >> (2 * ((at) - 1))) & 3)
#define TO(from, to) net[(from) * 3 + (to)]
#define NEXT(n) (BEHIND(holders[n], n) != NOBODY -> BEHIND(holders[n], n) : learner[n])
#define DECIDES(n) (HOLDS(holders[n], n) && FIRST(holders[n]) == (n))
#define DONE(n) (NEXT(n) == NOBODY -> length[n] : through[n])
#define HAS_ROOM(n) (length[n] < LONGEST && (NEXT(n) == NOBODY || len(TO(n, NEXT(n))) < ROOM))

#ifdef NO_EPOCHS
#define OBEYS(n, from) (true)
#define WAITS(n) (false)
#else
#define OBEYS(n, from) \
    (learns -> (teacher[n] == from && taught[n] == since) : \
    (teacher[n] == NOBODY && HOLDS(holders[n], n) && epoch[n] == since && BEFORE(holders[n], n) == from))
#define WAITS(n) (since > (teacher[n] != NOBODY -> taught[n] : epoch[n]))
#endif

#ifdef NO_ROUND
#define ANSWERED_AT_ONCE true
#else
#define ANSWERED_AT_ONCE false
#endif

/* Whether a log has a write, where, and how often. */
inline find(log, size, which) {
    is_there = 0; entry = 0; count = 0; i = 1;
    do
    :: i <= size ->
        if
        :: ENTRY(log, i) == which -> is_there = 1; entry = i; count++
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0
}

inline check_log(n, which) {
    if
    :: HOLDS(decided[decisions], n) -> find(log_of[n], length[n], which); assert(count <= 1)
    :: else
    fi
}

inline check() {
    j = 1;
    do
    :: j <= WRITES ->
        find(log_of[FIRST(decided[decisions])], length[FIRST(decided[decisions])], j);
        assert(!answered[j] || is_there);
        check_log(0, j); check_log(1, j); check_log(2, j);
        j++
    :: else -> break
    od;
    j = 0
}

/* A node does something, and passes it on. */
inline perform(n, which) {
    length[n] = length[n] + 1;
    log_of[n] = log_of[n] | (which << (2 * (length[n] - 1)));
    if
    :: NEXT(n) != NOBODY ->
        TO(n, NEXT(n)) ! APPLY, epoch[n], (BEHIND(holders[n], n) == NOBODY -> 1 : 0), length[n], which
    :: else
    fi
}

inline ask(n, which) {
    find(log_of[n], length[n], which);
    if
    :: !is_there -> perform(n, which)
    :: else
    fi
}

inline answer(n, which) {
    find(log_of[n], length[n], which);
    if
    :: is_there && entry <= DONE(n) -> answered[which] = true
    :: else
    fi
}

/* A node hears of the next decision. What the one behind has not done is sent again, to whoever that is now. */
inline adopt(n) {
    epoch[n] = epoch[n] + 1;
    if
    :: teacher[n] != NOBODY && (taught[n] >= epoch[n] || !HOLDS(decided[epoch[n]], n))
    :: else ->
        holders[n] = decided[epoch[n]];
        learner[n] = NOBODY; complete[n] = false; teacher[n] = NOBODY; told[n] = 0;
        j = through[n] + 1;
        do
        :: j <= length[n] && HOLDS(holders[n], n) && BEHIND(holders[n], n) != NOBODY ->
            TO(n, BEHIND(holders[n], n)) ! APPLY, epoch[n], 0, j, ENTRY(log_of[n], j);
            j++
        :: else -> break
        od
    fi
}

#define CAN_ADOPT(n, mask) \
    (BEHIND(mask, n) == NOBODY || len(TO(n, BEHIND(mask, n))) + length[n] <= ROOM + through[n])

/* The first message that waits at n from another node. */
inline take(n, from) {
    TO(from, n) ? <kind, since, learns, at, what>;
    if
    :: (kind == APPLY || kind == STATE) && WAITS(n)
    :: else ->
        TO(from, n) ? _, _, _, _, _;
        if
        :: kind == ACK ->
            if
            :: NEXT(n) == from && at > through[n] && at <= length[n] -> through[n] = at
            :: else
            fi
        :: kind == FILLED ->
            if
            :: learner[n] == from && since == epoch[n] -> complete[n] = true
            :: else
            fi
        :: kind == STATE && OBEYS(n, from) ->
            length[n] = at; log_of[n] = what; through[n] = at; told[n] = at;
            TO(n, from) ! FILLED, since, 0, 0, 0
        :: kind == APPLY && OBEYS(n, from) && at == length[n] + 1 -> perform(n, what)
        :: else
        fi
    fi
}

#define ARRIVES(n, from) (len(TO(from, n)) > 0 && HAS_ROOM(n) && len(TO(n, from)) < ROOM)
#define UPSTREAM(n) (teacher[n] != NOBODY -> teacher[n] : (HOLDS(holders[n], n) -> BEFORE(holders[n], n) : NOBODY))
#define IS_LAST(n) (HOLDS(holders[n], n) && BEHIND(holders[n], n) == NOBODY)
#define CAN_TEACH(n, to) \
    ((n) != (to) && IS_LAST(n) && DONE(n) == length[n] && learner[n] == NOBODY && !HOLDS(holders[n], to) && \
    !HOLDS(lost, to) && (holders[n] == 1 || holders[n] == 2 || holders[n] == 4) && (n) < (to) && \
    len(TO(n, to)) < ROOM)

inline teach(n, to) {
    learner[n] = to; complete[n] = false; through[n] = length[n];
    teacher[to] = n; taught[to] = epoch[n]; holders[to] = 0; log_of[to] = 0; length[to] = 0; through[to] = 0;
    told[to] = 0; learner[to] = NOBODY;
    TO(n, to) ! STATE, epoch[n], 1, length[n], log_of[n]
}

proctype Node(byte n) {
    do
    /* Clients. */
    :: d_step { DECIDES(n) && !answered[1] && HAS_ROOM(n) -> ask(n, 1); check() }
    :: d_step { DECIDES(n) && !answered[2] && HAS_ROOM(n) -> ask(n, 2); check() }
    :: d_step { DECIDES(n) && !answered[1] && length[n] > 0 -> answer(n, 1); check() }
    :: d_step { DECIDES(n) && !answered[2] && length[n] > 0 -> answer(n, 2); check() }
    :: d_step {
           DECIDES(n) && reader == NOBODY && HAS_ROOM(n) && (answered[1] || answered[2]) ->
           reader = n; before_read = answered[1] | (answered[2] << 1);
           perform(n, READ); read_at = length[n]
       }
    :: d_step {
           reader == n && DECIDES(n) && read_at > 0 && (ANSWERED_AT_ONCE || DONE(n) >= read_at) ->
           find(log_of[n], read_at, 1); assert(is_there || !(before_read & 1));
           find(log_of[n], read_at, 2); assert(is_there || !(before_read & 2));
           read_at = 0
       }
    /* Other nodes. */
    :: d_step { n != 0 && ARRIVES(n, 0) -> take(n, 0); check() }
    :: d_step { n != 1 && ARRIVES(n, 1) -> take(n, 1); check() }
    :: d_step { n != 2 && ARRIVES(n, 2) -> take(n, 2); check() }
    :: d_step {
           UPSTREAM(n) != NOBODY && told[n] < DONE(n) && len(TO(n, UPSTREAM(n))) < ROOM ->
           told[n] = DONE(n); TO(n, UPSTREAM(n)) ! ACK, 0, 0, DONE(n), 0
       }
    :: d_step { n < 2 && CAN_TEACH(n, 2) -> teach(n, 2) }
    :: d_step { n < 1 && CAN_TEACH(n, 1) -> teach(n, 1) }
    /* The front end. */
    :: d_step {
           epoch[n] < decisions && (!HOLDS(lost, n) || epoch[n] + 1 < lost_at[n]) &&
           CAN_ADOPT(n, decided[epoch[n] + 1]) -> adopt(n); check()
       }
    :: d_step {
           HOLDS(holders[n], n) && BEHIND(holders[n], n) != NOBODY && nfull(proposals) && decisions < DECISIONS &&
           epoch[n] == decisions -> proposals ! epoch[n], (holders[n] & ~BIT(BEHIND(holders[n], n)))
       }
    :: d_step {
           learner[n] != NOBODY && complete[n] && nfull(proposals) && decisions < DECISIONS &&
           epoch[n] == decisions -> proposals ! epoch[n], (holders[n] | BIT(learner[n]))
       }
#ifdef ALONE
    :: d_step {
           HOLDS(holders[n], n) && BEHIND(holders[n], n) != NOBODY ->
           holders[n] = holders[n] & ~BIT(BEHIND(holders[n], n)); check()
       }
#endif
    od
}

inline lose(n) {
    decisions++;
    decided[decisions] = decided[decisions - 1] & ~BIT(n);
    lost = lost | BIT(n); lost_at[n] = decisions
}

#define CAN_LOSE(n) (decisions < DECISIONS && !HOLDS(lost, n) && (decided[decisions] & ~BIT(n)) != 0)

proctype FrontEnd() {
    do
    :: d_step { CAN_LOSE(0) -> lose(0); check() }
    :: d_step { CAN_LOSE(1) -> lose(1); check() }
    :: d_step { CAN_LOSE(2) && HOLDS(decided[decisions], 2) -> lose(2); check() }
    :: d_step {
           nempty(proposals) -> proposals ? since, what;
           if
           :: since == decisions && decisions < DECISIONS && !(what & lost) ->
               decisions++; decided[decisions] = what
           :: else
           fi;
           check()
       }
    od
}

init {
    d_step {
        i = 0;
        do
        :: i < NODES -> holders[i] = 3; learner[i] = NOBODY; teacher[i] = NOBODY; i++
        :: else -> break
        od;
        decided[0] = 3
    }
    atomic { run FrontEnd(); run Node(0); run Node(1); run Node(2) }
}
