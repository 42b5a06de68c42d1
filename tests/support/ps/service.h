// Service: real servers of parameters in this process, with real sockets and shared memory, and the
// few calls that tests make of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ps/client/client.h"
#include "ps/client/row_calls.h"
#include "ps/server/server.h"

namespace gradring::testing {

inline constexpr Millis kServiceTimeout{20000};
inline const std::string kServiceSecret = "of this test";

struct Service {
  std::vector<std::unique_ptr<ps::Server>> servers;
  std::vector<std::string> addresses;

  Service(std::uint32_t count, std::uint32_t threads,
          transport::TransportMode mode = transport::TransportMode::kAuto);

  std::unique_ptr<ps::Client> connect(
      std::uint32_t number, transport::TransportMode mode = transport::TransportMode::kAuto,
      Millis timeout = kServiceTimeout) const;
};

std::shared_ptr<ps::RemoteTable> make_table(ps::Client& client, const ps::TableSpec& spec);
ps::TableSpec counts(std::uint32_t dim);  // A table that adds up what is pushed.
std::vector<std::uint64_t> ids_of(std::size_t count, std::uint64_t distinct);
void push_ones(ps::Client& client, const std::shared_ptr<ps::RemoteTable>& table,
               const std::vector<std::uint64_t>& ids);
std::vector<float> pull(ps::Client& client, const std::shared_ptr<ps::RemoteTable>& table,
                        const std::vector<std::uint64_t>& ids);
bool all_are(const std::vector<float>& values, float expected);

}  // namespace gradring::testing
