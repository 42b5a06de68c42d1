#include "sim/scale/start_up.h"

#include "base/text.h"
#include "transport/membership/membership.h"

namespace gradring::sim {
namespace {

using transport::Membership;

constexpr std::uint64_t kLengthBytes = 4;  // Before each message on a control connection.
constexpr Time kStartUpBegin{std::chrono::hours(1)};

// As transport/joining/rendezvous.cc describes a rank of a host with 64 processors; the key is as
// long as host.cc's there.
wire::Member member_of(Rank rank) {
  constexpr std::size_t kSessionDigits = 32;
  constexpr std::size_t kHostKeyLength = 47;
  constexpr std::size_t kProcessorDigits = 16;
  return {rank,
          str("10.0.", rank / 250, '.', rank % 250, ":41822"),
          "gradring-" + std::string(kSessionDigits, '0'),
          std::string(kHostKeyLength, 'k'),
          0,
          0,
          std::string(kProcessorDigits, 'f'),
          1};
}

std::uint64_t frame_bytes(const wire::Message& message) {
  return kLengthBytes + encode(message).size();
}

Membership membership_of(Rank rank, Rank ranks) {
  Membership::Settings settings;
  settings.rank = rank;
  settings.world_size = ranks;
  for (Rank other = 0; other < ranks; ++other)
    settings.addresses.push_back(member_of(other).tcp_address);
  Membership membership(std::move(settings), kStartUpBegin);
  Membership::Actions nothing;
  for (Rank other = 0; other < ranks; ++other)
    if (other != rank && (rank == 0 || other == 0))
      membership.on_connected(other, kStartUpBegin, nothing);
  return membership;
}

void count(const Membership::Actions& actions, std::uint64_t& messages, std::uint64_t& bytes) {
  for (const auto& [to, message] : actions.send) {
    ++messages;
    bytes += frame_bytes(message);
  }
}

Phase joining(Rank ranks) {
  Phase phase{.name = "join"};
  wire::Welcome welcome;
  for (Rank rank = 0; rank < ranks; ++rank) welcome.members.push_back(member_of(rank));
  phase.messages = static_cast<std::uint64_t>(ranks - 1);
  phase.bytes = phase.messages * frame_bytes(welcome);
  phase.follower_messages = 1;
  phase.follower_bytes = frame_bytes(wire::Join{1, member_of(ranks - 1)});
  return phase;
}

Phase beating(Rank ranks) {
  Phase phase{.name = "heartbeat"};
  wire::CallState call;
  Membership::Actions of_first;
  membership_of(0, ranks).on_tick(kStartUpBegin, {call}, of_first);
  count(of_first, phase.messages, phase.bytes);
  Membership::Actions of_last;
  membership_of(ranks - 1, ranks).on_tick(kStartUpBegin, {call}, of_last);
  count(of_last, phase.follower_messages, phase.follower_bytes);
  return phase;
}

Phase dying(Rank ranks) {
  Phase phase{.name = "one rank dies"};
  Membership::Actions actions;
  membership_of(0, ranks).on_closed(ranks - 1, kStartUpBegin, "closed its connection", actions);
  count(actions, phase.messages, phase.bytes);
  return phase;
}

Phase closing(Rank ranks) {
  Phase phase{.name = "all close a communicator"};
  constexpr std::uint64_t kCommunicator = 7;
  std::vector<Rank> members;
  for (Rank rank = 0; rank < ranks; ++rank) members.push_back(rank);
  Membership first = membership_of(0, ranks);
  for (Rank rank = 0; rank < ranks; ++rank) {
    const wire::Left left{kCommunicator, rank, members};
    Membership::Actions actions;
    if (rank == 0)
      first.leave_group(left, actions);
    else
      first.on_message(rank, left, kStartUpBegin, actions);
    // All of one call say the same: one is encoded for all.
    phase.messages += actions.send.size();
    if (!actions.send.empty())
      phase.bytes += actions.send.size() * frame_bytes(actions.send[0].second);
  }
  Membership last = membership_of(ranks - 1, ranks);
  Membership::Actions actions;
  last.leave_group({kCommunicator, ranks - 1, members}, actions);
  count(actions, phase.follower_messages, phase.follower_bytes);
  return phase;
}

Phase leaving(Rank ranks) {
  Phase phase{.name = "all leave"};
  Membership first = membership_of(0, ranks);
  for (Rank rank = ranks - 1; rank >= 0; --rank) {
    Membership::Actions actions;
    if (rank == 0)
      first.leave(actions);
    else
      first.on_message(rank, wire::Bye{}, kStartUpBegin, actions);
    phase.messages += actions.send.size();
    if (!actions.send.empty())
      phase.bytes += actions.send.size() * frame_bytes(actions.send[0].second);
  }
  phase.follower_messages = 1;
  phase.follower_bytes = frame_bytes(wire::Bye{});
  return phase;
}

}  // namespace

std::vector<Phase> count_start_up(Rank ranks) {
  return {joining(ranks), beating(ranks), dying(ranks), closing(ranks), leaving(ranks)};
}

std::uint64_t connections_after_joining(Rank rank, Rank ranks) {
  return rank == 0 ? static_cast<std::uint64_t>(ranks - 1) : 1;
}

std::uint64_t member_table_bytes(Rank ranks) {
  std::uint64_t bytes = 0;
  for (Rank rank = 0; rank < ranks; ++rank) {
    const wire::Member member = member_of(rank);
    bytes += sizeof member + member.tcp_address.capacity() + member.unix_name.capacity() +
             member.host_key.capacity();
  }
  return bytes;
}

}  // namespace gradring::sim
