// An operation's header from a stranger: decoded or refused with ProtocolError, and what was
// decoded survives encoding.
#include "wire/op_header.h"

#include <algorithm>

#include "base/error.h"
#include "fuzz/target.h"

using namespace gradring;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t byte_count) {
  wire::OpHeaderBytes bytes{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(byte_count, bytes.size()),
              bytes.begin());
  try {
    const wire::OpHeaderBytes again = wire::encode(wire::decode_op_header(bytes));
    fuzz::require(wire::encode(wire::decode_op_header(again)) == again,
                  "decode is the inverse of encode");
  } catch (const ProtocolError&) {
  }
  return 0;
}

std::vector<std::vector<std::byte>> fuzz::examples() {
  wire::OpHeader header;
  header.call = {.op = OpKind::kAllReduce, .dtype = DType::kBFloat16, .count = 1u << 20};
  header.seq = 17;
  const auto bytes = wire::encode(header);
  return {{bytes.begin(), bytes.end()}};
}
