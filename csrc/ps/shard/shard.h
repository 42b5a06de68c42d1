// Shard: the server's protocol logic. It is told of frames, connections and the time, and says what
// to answer; it does no I/O and reads no clock, so that a seeded simulator can drive it. One thread
// owns each shard: the server's shard thread, or the simulator.
//
// What changes a shard's state are exactly the numbered requests, and a few events of its own
// (a worker given up); all of them go through the journal before anything of them is seen outside,
// and feeding the journal to a new shard makes the same state.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/config.h"
#include "base/error.h"
#include "ps/shard/spares.h"
#include "ps/tables/dense_table.h"
#include "ps/tables/sparse_table.h"
#include "wire/ps_frames.h"

namespace gradring::ps {

struct Frame {
  wire::PsHeader header;  // payload_bytes is the payload's size.
  Bytes payload;
};

// A connection of one client to this shard, numbered by whoever owns it; never reused.
using Connection = std::uint64_t;

struct Answer {
  Connection to = 0;
  Frame frame;
  // The payload in place of the frame's, where others are told the same: a dense table as it is.
  std::shared_ptr<const Bytes> shared = nullptr;

  std::span<const std::byte> payload() const { return shared ? *shared : frame.payload; }
};

// Where the changes go. The owner of the shard makes them durable (Log) before it sends answers.
class Journal {
 public:
  virtual ~Journal() = default;
  virtual void append(const wire::PsHeader& header, std::span<const std::byte> payload,
                      std::uint32_t client, std::uint64_t incarnation) = 0;
};

struct ShardOptions {
  std::uint32_t shard = 0;
  std::uint32_t shards = 1;
  std::uint64_t incarnation = 0;  // Of this server process; random.
  Millis client_grace{5000};      // A worker without a connection for so long is given up.
  std::string host_key;           // Told to clients, so that they find the shared memory.
  std::string unix_name;          // "" if there is none.
  std::size_t held_bytes = limits::kPsHeldBytes;
  std::size_t answer_bytes = limits::kPsAnswerBytes;
  std::size_t contribution_bytes = limits::kPsContributionBytes;
  // For tests: a dense table that is larger here finds no memory.
  std::uint64_t dense_bytes = ~std::uint64_t{0};
  // And one whose weights are more is not copied for a snapshot, for lack of memory.
  std::uint64_t snapshot_bytes = ~std::uint64_t{0};
};

// What the shard's owner has to do outside: write or read a part of a checkpoint.
struct Job {
  std::uint64_t cut = 0;
  bool is_load = false;
  // From kCut or kLoad, as the client wrote it: of a cut a line that says where the checkpoint will
  // be, for people; then JSON that only Python reads.
  std::string text;
};

// A change was done by half: the shard is of no use any more, whoever hears of it. So it is no
// Error, which may be somebody's answer.
class HalfDone : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Belongs to a checkpoint: it passes what waits for one.
bool is_control(wire::PsType type);

class Shard {
 public:
  Shard(const ShardOptions& options, Journal& journal);
  ~Shard();

  void connected(Connection connection, Time now);
  void disconnected(Connection connection, Time now);
  // Whether a frame of this connection may be handed in now; false holds its sender back.
  bool takes_from(Connection connection) const;
  // Answers are kept back, of requests that had waited for a gate or for the end of a freeze: a few
  // bytes that ask for very much may wait in great number. go_on() lets out as many as one client
  // is told at once; to be called when it has taken what it was told.
  bool has_more(Connection connection) const;
  void go_on(Connection connection, Time now, std::vector<Answer>& answers);
  // Throws ProtocolError if the frame makes no sense: drop the connection.
  void receive(Connection connection, Frame frame, Time now, std::vector<Answer>& answers);
  // What payloads are made of: its owner takes memory for requests and gives back that of answers.
  Spares& spares();
  // To be called by next_tick() at the latest.
  void tick(Time now, std::vector<Answer>& answers);
  Time next_tick() const;

  // Feeds one record of the journal back in, before anybody connects.
  void replay(const wire::PsHeader& header, std::span<const std::byte> payload,
              std::uint32_t client, std::uint64_t incarnation);

  // Jobs that kCut or kLoad brought, for the owner to carry out and report.
  std::vector<Job> take_jobs();
  void finish_job(std::uint64_t cut, const std::string& result, const Failure& failure,
                  std::vector<Answer>& answers);

  // Begins a snapshot of everything as it is now, for the owner's own use: the log starts anew
  // behind it. False while another one is being read. It gives way to a checkpoint's: before each
  // piece, ask whether it is still there.
  static constexpr std::uint64_t kOwnSnapshot = 0;
  bool begin_snapshot();
  bool has_own_snapshot() const;
  // The snapshot of a cut, or kOwnSnapshot, in pieces: tables, dedup windows, domains
  // (ps/log/snapshot.h has the format). Pieces are whole records; false once there is no more.
  // Throws InvalidArgument if that is not the snapshot of now (any more): a load ends it, and so
  // does kThaw.
  bool next_snapshot_piece(std::uint64_t cut, std::size_t most_bytes, SnapshotBytes& out);
  // Of no other cut than this one.
  void end_snapshot(std::uint64_t cut);
  // The inverse: beside what is there, until commit_load puts it in its place. Pieces may come from
  // shards of another layout; what is not ours is left out. A recovery is of this very shard: it
  // also takes clients and domains as they were. Else clients that are known stay as they are,
  // others are those of a checkpoint (ClientTable::add_foreign), and workers begin new domains.
  // Throws ProtocolError on nonsense.
  // `staging`: the number of the job (Job::cut) that asked for it, which ends with its client; or
  // kOwnLoad, the owner's. One at a time: begin_load throws InvalidArgument where there is another,
  // the others throw Closed where there is none (any more). After prepare_load it outlasts that its
  // client is away for a minute: when all shards have said so they can be told to commit, and it
  // stays while a job of that client is under way. The next begin_load takes the place of one whose
  // client was given up. Else it goes with a client that has said goodbye and left, or is another
  // process by now.
  static constexpr std::uint64_t kOwnLoad = 0;
  void begin_load(std::uint64_t staging = kOwnLoad);
  void load_piece(std::span<const std::byte> piece, std::uint64_t staging = kOwnLoad);
  void prepare_load(std::uint64_t staging);
  void commit_load(bool is_recovery, std::uint64_t staging = kOwnLoad);
  void abandon_load(std::uint64_t staging = kOwnLoad);

  // After a load its owner may have to write down what came of it before anything builds on that:
  // meanwhile numbered requests wait, nobody is given up, and no checkpoint is taken. Reads go on.
  void hold_changes();
  void let_changes_go_on();  // The next tick(), which is due at once, does what has waited.
  bool holds_changes() const;

  std::uint64_t newest_incarnation() const;  // Of all clients that it knows.
  std::string stats() const;                 // JSON: tables, clients, domains.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace gradring::ps
