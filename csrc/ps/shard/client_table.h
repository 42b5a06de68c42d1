// What a shard remembers of its clients: how far each has come, so that every numbered request is
// done once (promise P6). Owned by its shard.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/error.h"
#include "ps/protocol/payloads.h"

namespace gradring::ps {

// What was answered to a change: numbers that a later look would not find again, and rows as they
// were right after the push that asked for them, without what others have done since.
struct SmallAnswer {
  std::uint64_t seq = 0;
  std::uint64_t pushes = 0;  // Of the table.
  std::uint64_t stamp = 0;   // The same.
  Bytes payload;             // At most limits::kPsSmallAnswerBytes.
};

struct ClientState {
  std::uint64_t incarnation = 0;
  std::uint64_t seq = 0;                    // Last one done.
  wire::Tail tail;                          // Of that one.
  std::map<std::uint64_t, Failure> failed;  // The last limits::kPsOutcomes that failed, by seq.
  std::deque<SmallAnswer> answers;          // As many of those, by ascending seq.
  // Where it is now; nothing while it is away, since `away_since`.
  std::optional<std::uint64_t> connection;
  Time away_since{};
  bool has_said_goodbye = false;  // On its connection: it will not come back.
  bool is_given_up = false;
  bool had_history = false;  // As an earlier process: the log knows it.
};

class ClientTable {
 public:
  // The client's state, made or (for a later incarnation) made anew. Throws Closed for an earlier
  // incarnation, InvalidArgument if there are too many clients.
  ClientState& enter(std::uint32_t client, std::uint64_t incarnation);
  ClientState* find(std::uint32_t client);
  const ClientState* find(std::uint32_t client) const;
  // Whom to forget so that this client can enter: of those that were given up and are no workers,
  // the one that has been away for the longest. Nothing if there is room, or nobody to forget.
  std::optional<std::uint32_t> in_the_way_of(std::uint32_t client) const;
  std::uint64_t newest_incarnation() const { return newest_incarnation_; }
  void forget(std::uint32_t client) {
    clients_.erase(client);
    foreign_.erase(client);  // A log that is read again may not have seen it come.
  }
  std::map<std::uint32_t, ClientState>& all() { return clients_; }
  const std::map<std::uint32_t, ClientState>& all() const { return clients_; }

  static void note_failure(ClientState& state, std::uint64_t seq, const Failure& failure);
  // Later than all that are there.
  static void note_answer(ClientState& state, SmallAnswer answer);
  static const SmallAnswer* find_answer(const ClientState& state, std::uint64_t seq);

  void save(Bytes& out) const;
  // Adds what is saved; whom we know already stays as it is, here and in `add`, which forgets as
  // many who are away as are too many.
  void restore(wire::Reader& in);
  // A client that is known by its number only: it may come as any process, or be given up.
  void expect(std::uint32_t client) { clients_.try_emplace(client); }
  void add(ClientTable others);
  // The clients of a checkpoint, in place of those of the one before. Incarnations of other servers
  // come from other clocks: whoever comes with another one than such a client had is no earlier
  // process of it, and begins anew. Only that very process goes on where it was.
  void add_foreign(ClientTable others);

 private:
  using Clients = std::map<std::uint32_t, ClientState>;

  ClientState begun(std::uint32_t client, std::uint64_t incarnation);
  static void shed(Clients& clients);

  Clients clients_;
  Clients foreign_;                       // Of a checkpoint, and not here since.
  std::uint64_t newest_incarnation_ = 0;  // Also of those that were forgotten.
};

}  // namespace gradring::ps
