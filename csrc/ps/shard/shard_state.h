// Shard::Impl: what a shard consists of, for the files that implement it: shard.cc (connections and
// reading), shard_changes.cc (numbered requests, gates), shard_memory.cc (whether there is any for
// those), shard_cuts.cc (freezing, jobs), shard_snapshot.cc (what is read out and in).
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <new>
#include <optional>
#include <vector>

#include "ps/protocol/row_codec.h"
#include "ps/shard/client_table.h"
#include "ps/shard/domain.h"
#include "ps/shard/shard.h"
#include "ps/shard/store.h"

namespace gradring::ps {

// A numbered request, taken apart. Its spans point into the frame.
struct Change {
  wire::Tail tail;
  std::optional<wire::Round> round;
  TableSpec spec;                      // kMakeTable
  kernels::Rule rule;                  // kSetRule
  ClockPayload clock;                  // kClock
  float least_score = 0;               // kShrink
  std::span<const std::uint64_t> ids;  // kPush
  std::span<std::byte> values;         // kPush, kPushDense, kWriteRows
};
// Throws ProtocolError.
Change parse_change(const wire::PsHeader& header, std::span<std::byte> payload);

struct Shard::Impl {
  using Answers = std::vector<Answer>;

  struct Guest {
    std::optional<std::uint32_t> client;  // After its hello.
    std::deque<Frame> held;               // Wait for the end of a freeze, and what follows those.
    std::size_t held_bytes = 0;           // Of these, and of its pulls that wait for gates.
    std::size_t released_bytes = 0;       // Answers to what had waited, since go_on().
    bool is_kept_back = false;            // Something of it only waits for go_on().
  };
  // A pull that waits for a gate.
  struct Parked {
    Connection connection = 0;
    Frame frame;
    wire::Gate gate;
    std::size_t ids_at = 0;  // In the frame's payload.
    Time until{};
    bool is_let_through = false;  // And waits for room: a domain may go on, or end, meanwhile.
  };
  // A freeze: what changes something waits, except what belongs to the cut.
  // Both are made as Freeze{} and Snapshot{}, not by emplace(): whether that can be done without
  // arguments clang asks before this class ends, once for all, and first values count from there.
  struct Freeze {
    std::uint64_t cut = 0;
    Time until{};
    std::uint32_t client = 0;  // Who takes the cut.
    std::uint64_t incarnation = 0;
    std::map<std::uint32_t, Position> targets;  // From kAdvance.
    struct Advancing {                          // Who waits for them, and how long.
      Connection connection = 0;
      wire::PsHeader request;
      Time until{};
    };
    std::optional<Advancing> advancing;
  };
  struct Snapshot {
    std::uint64_t cut = 0;              // kOwnSnapshot: gives way to a checkpoint.
    std::string place;                  // Of the checkpoint, for people.
    std::deque<Bytes> front;            // Clients, specs, domains as they were; before the tables.
    std::vector<std::uint64_t> tables;  // Still to be read out, the last one first.
  };
  // What came with begin_load, until commit_load.
  struct Loading {
    explicit Loading(Store empty) : store(std::move(empty)) {}
    std::uint64_t staging = kOwnLoad;
    std::optional<std::uint32_t> client;  // Whose it is, but for the owner's.
    std::uint64_t incarnation = 0;        // Of that.
    bool is_prepared = false;
    Store store;
    bool is_same_layout = false;  // Of the file that is being read.
    // Whose it is. Files of one shard follow each other, and a later one says what holds.
    std::optional<std::uint32_t> source;
    std::map<std::uint64_t, std::uint64_t> least_steps;  // By table, of the shards before it.
    // Parsed as they come: what makes no sense is refused before anything is taken over.
    ClientTable clients;
    std::map<std::uint64_t, Domain> domains;
  };
  struct Waiting {  // kJob
    Connection connection = 0;
    wire::PsHeader request;
    std::uint64_t cut = 0;
  };
  struct Ended {
    std::uint64_t cut = 0;
    std::string result;
    Failure failure;
  };

  Impl(const ShardOptions& shard_options, Journal& shard_journal)
      : options(shard_options),
        journal(&shard_journal),
        store(empty_store()),
        lineage(shard_options.incarnation) {}

  Store empty_store() const {
    return Store({options.shard, options.shards, options.contribution_bytes, options.dense_bytes});
  }

  // shard.cc
  void hello(Connection connection, Guest& guest, const Frame& frame, Answers& answers);
  void read(Connection connection, std::uint32_t client, Frame frame, Time now, Answers& answers);
  void pull(Connection connection, Frame frame, Time now, Answers& answers);
  Answer answer_pull(Connection connection, const Frame& frame, std::size_t ids_at);
  Frame rows_of(const Frame& request, std::size_t ids_at);
  Answer dense_of(Connection connection, const Frame& request);
  Frame changed_of(const Frame& request, std::uint32_t client);
  Frame whole_rows_of(const Frame& request);
  std::string stats() const;

  // shard_memory.cc
  void settle_memory(Frame& change);  // Before the journal has it: whether there is any for it.
  bool has_memory_for(Frame& change);
  void reserve(Table& table, const wire::PsHeader& change, std::size_t rows, std::size_t fresh);
  bool refuse_for_memory(Frame& change);  // False: it is none of those that can be.
  void require_memory_was_found(const wire::PsHeader& change) const;
  template <typename Note>
  void with_last_memory(Note&& note);  // What is small, and is noted whole or not at all.

  // shard_changes.cc
  void change(Connection connection, std::uint32_t client, Frame frame, Answers& answers);
  static void note_answer(ClientState& state, const wire::PsHeader& request, const Frame& answer);
  Frame again(const ClientState& state, const Frame& request);
  Frame apply(const wire::PsHeader& header, const Change& change, std::uint32_t client);
  Outcome change_rule(const wire::PsHeader& header, const Change& change, std::uint32_t client);
  Outcome apply_push(const wire::PsHeader& header, const Change& change, std::uint32_t client);
  void accept(const wire::PsHeader& header, std::span<std::byte> payload, std::uint32_t client,
              ClientState& state, Frame* answer);
  Frame apply_or_refuse(const wire::PsHeader& header, const Change& change, std::uint32_t client,
                        ClientState& state);
  void settle_rounds();
  void give_up(std::uint32_t client);
  void make_room(std::uint32_t client);
  void forget(std::uint32_t client);
  void open_gates(Time now, Answers& answers);

  // shard_cuts.cc
  void require_no_load() const;  // For a checkpoint.
  bool is_held(const Frame& frame, std::uint32_t client);
  void control(Connection connection, const Frame& frame, Time now, Answers& answers);
  void freeze(Connection connection, const Frame& frame, Time now, Answers& answers);
  void advance(Connection connection, const Frame& frame, Time now, Answers& answers);
  void settle_advance(Answers& answers);
  std::string not_there();  // Clients that have not come to their targets, for people.
  Frame cut(const Frame& frame, std::uint32_t client);
  void require_room_for_a_job() const;
  bool note_job(std::uint64_t cut, std::uint32_t client);  // False: it is known already.
  bool has_ended(std::uint64_t cut) const;
  std::optional<std::uint32_t> who_asked_for(std::uint64_t cut) const;
  // Of what changed after these stamps, for each table; 0 or none: everything.
  void end_snapshot();
  void begin_snapshot(std::uint64_t cut, const std::map<std::uint64_t, std::uint64_t>& since);
  Time end_of_freeze() const;             // Of one that there is.
  void melt(Time now, Answers& answers);  // What is due.
  void thaw(Time now, Answers& answers);
  void void_freeze();  // It would be a cut through two histories: it fails, and thaws at once.
  void hold(Guest& guest, Frame frame);
  void release_held(Time now, Answers& answers);
  void release_held_of(Connection connection, Guest& guest, Time now, Answers& answers);
  bool may_answer(Guest& guest);  // One that had waited; what is kept back waits for go_on().
  void answer_job(const Waiting& one, Answers& answers);

  // shard_snapshot.cc
  std::deque<Bytes> front_of_snapshot() const;
  void give_up_load(std::uint64_t staging, std::uint32_t client);
  Loading& loading_of(std::uint64_t staging);
  void number_rules_of(Store& loaded);
  bool is_left_behind(const Loading& load);
  Time end_of_load() const;  // Of one that there is; Time::max(): nothing ends it by itself.
  void begin_source(std::uint32_t shard);
  void load_record(std::uint64_t kind, std::uint64_t table, std::span<const std::byte> payload);

  ShardOptions options;
  Journal* journal;
  Spares spares;
  Bytes answer_room;  // For the answer to the next change; or none.
  Bytes last_memory;  // Given back where there is no other: for what must be noted.
  Store store;
  ClientTable clients;
  std::map<std::uint64_t, Domain> domains;
  std::map<Connection, Guest> guests;
  std::vector<Parked> parked;
  std::optional<Freeze> frozen;
  bool holds_changes = false;       // For its owner, after a load.
  bool has_let_changes_go = false;  // And they are still to be done.
  std::optional<Snapshot> snapshot;
  std::vector<Job> jobs;
  std::vector<Waiting> waiting;
  // Under way, and who asked for them.
  std::vector<std::pair<std::uint64_t, std::uint32_t>> known_jobs;
  std::vector<Ended> ended;  // And that ended, for a kJob that comes late or again.
  // The last cut and what was answered, for a kCut that comes again.
  std::uint64_t last_cut = 0;
  std::optional<Frame> last_cut_answer;
  std::optional<Loading> loading;
  // Which history the stamps belong to: another one in every process and after a load. An
  // incremental checkpoint needs a base of the same one.
  std::uint64_t lineage;
};

template <typename Note>
void Shard::Impl::with_last_memory(Note&& note) {
  try {
    note();
  } catch (const std::bad_alloc&) {
    if (last_memory.capacity() == 0) throw;
    give_back(last_memory);
    note();
  }
}

// What a frame that waits takes of ShardOptions::held_bytes: as much as it takes of what its client
// may have under way, so that a client that is held back has sent everything it could.
inline std::size_t bytes_of(const Frame& frame) {
  return wire::kPsHeaderBytes + frame.payload.size();
}
// An answer to `request`.
Frame answer_to(const wire::PsHeader& request, wire::PsType type);
Frame error_to(const wire::PsHeader& request, const Failure& failure);
// Reading changes nothing: who asks for too much hears it, and nobody else.
Failure no_memory();
// At this a change was done by half, or is lost: its shard stops.
HalfDone memory_is_full(const std::string& where);
// For a gate of a domain that is not there.
Closed domain_is_over();
// That its client's number has another connection by now.
Frame replaced_to(const wire::PsHeader& request);

}  // namespace gradring::ps
