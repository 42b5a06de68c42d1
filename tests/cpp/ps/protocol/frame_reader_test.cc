// Frames off a connection.
#include "ps/protocol/frame_reader.h"

#include <doctest/doctest.h>
#include <sys/socket.h>

#include "support/no_memory.h"
#include "transport/links/tcp_link.h"

namespace gradring::testing::frame_reader_test {
namespace {

TEST_CASE("a frame that there is no memory for ends its connection, and nothing more") {
  int ends[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) == 0);
  const transport::Fd sender(ends[0]);
  transport::TcpLink link{transport::Fd(ends[1])};
  wire::PsHeader header;
  header.type = wire::PsType::kPush;
  header.payload_bytes = std::size_t{5} << 20;
  const wire::PsHeaderBytes bytes = wire::encode(header);
  REQUIRE(::send(sender.get(), bytes.data(), bytes.size(), 0) == ssize_t(bytes.size()));
  ps::FrameReader reader;
  REQUIRE(reader.read(link) == ps::FrameReader::Step::kHeader);
  const auto read_on = [&] {
    const NoHeap none(1 << 16);
    return reader.read(link);
  };
  CHECK_THROWS_WITH_AS(read_on(), doctest::Contains("no memory for a push of 5242880 bytes"),
                       ProtocolError);
}

}  // namespace
}  // namespace gradring::testing::frame_reader_test
