// Control messages from a stranger: any bytes are decoded or refused with ProtocolError, nothing
// else; what was decoded encodes to as many bytes, and decodes to itself.
#include "wire/messages.h"

#include "base/error.h"
#include "fuzz/target.h"

using namespace gradring;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  const std::span bytes(reinterpret_cast<const std::byte*>(data), byte_count);
  try {
    const wire::Message message = wire::decode_message(bytes);
    const auto again = wire::encode(message);
    fuzz::require(again.size() == byte_count, "a message is as long as its encoding");
    fuzz::require(wire::encode(wire::decode_message(again)) == again,
                  "decode is the inverse of encode");
  } catch (const ProtocolError&) {
  }
  return 0;
}

std::vector<std::vector<std::byte>> fuzz::examples() {
  const wire::Member member{
      .rank = 3, .tcp_address = "10.0.0.3:41822", .unix_name = "gradring-3", .host_key = "host"};
  wire::CallState state;
  state.communicator = 7;
  state.seq = 42;
  state.in_progress = true;
  state.call = {.op = OpKind::kAllReduce, .dtype = DType::kFloat32, .count = 1000};
  state.members_hash = 99;
  state.made_by = "subgroup([0, 1], 'a')";
  state.before = {state.call, {.op = OpKind::kBroadcast, .root = 0}};

  const std::vector<wire::Message> messages{
      wire::Join{.world_size = 4, .member = member, .mode = wire::TransportMode::kTcp},
      wire::Welcome{.session = {},
                    .members = {member, member},
                    .costs = {.tcp = LinkCosts{40, 2, 10, 1}, .shared_memory = {}},
                    .meeting_point = "10.0.0.1:4000"},
      wire::Refused{.text = "this rank has joined already", .may_come_again = true},
      wire::Heartbeat{.calls = {state, state}},
      wire::Lost{.rank = 2, .has_left = true, .text = "closed"},
      wire::Abort{.communicator = 7,
                  .seq = 42,
                  .origin = 1,
                  .failure = {.kind = ErrorKind::kPeerLost, .rank = 2, .text = "rank 2 died"}},
      wire::Bye{},
      wire::ShrinkRequest{.communicator = 7, .members = {0, 1, 3}},
      wire::ShrinkReply{.communicator = 7, .survivors = {0, 3}},
      wire::Left{.communicator = 7, .rank = 1, .members = {0, 1, 3}},
      wire::ShrinkWait{.communicator = 7, .count = 20, .missing = {1, 2}},
      wire::Doubt{.rank = 3, .text = "no heartbeat"},
      wire::Invitation{.rank = 3,
                       .world_size = 4,
                       .port = 41822,
                       .mode = wire::TransportMode::kShm,
                       .host_key = "host",
                       .patience_ms = 5,
                       .timeout_ms = 6,
                       .heartbeat_timeout_ms = 7},
      wire::Grown{.is_done = true},
  };
  std::vector<std::vector<std::byte>> found;
  for (const auto& message : messages) found.push_back(wire::encode(message));
  return found;
}
