// `gnomon notify test`: what the receivers of a configuration answer.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <boost/json.hpp>

#include "base/files.h"
#include "tests/cli/program.h"
#include "tests/protocol/http_test_server.h"
#include "tests/support/temporary_directory.h"

namespace gnomon::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(NotifyCommandTest, ATestMessageIsSentAndItsAnswerPrinted) {
  test::TemporaryDirectory folder;
  test::HttpRequest came;
  test::HttpTestServer good([&](const test::HttpRequest& request) {
    came = request;
    return test::HttpReply{202, "thank you"};
  });
  test::HttpTestServer bad([](const test::HttpRequest&) {
    return test::HttpReply{404, "no such hook"};
  });
  write_file_atomically(folder / "key", "k\n");
  const std::string file = (folder / "gnomond.toml").string();
  write_file_atomically(file, fmt::format("[[notify]]\nname = \"good\"\nurl = \"{}/x\"\n"
                                          "secret_file = \"key\"\n"
                                          "[[notify]]\nname = \"bad\"\nurl = \"{}/\"\n",
                                          good.url(), bad.url()));
  const test::EndedProcess one =
      run_gnomon({"notify", "test", "--config", file, "--receiver", "good"});
  EXPECT_EQ(one.status, 0) << one.output;
  EXPECT_THAT(one.output,
              AllOf(HasSubstr("good: taken (status 202: thank you)"), Not(HasSubstr("bad"))));
  EXPECT_EQ(came.target, "/x");
  EXPECT_TRUE(came.headers.at("x-gnomon-signature").starts_with("t="));
  EXPECT_EQ(boost::json::parse(came.body).at("commonLabels").at("alertname").as_string(),
            "GnomonTest");
  const test::EndedProcess all = run_gnomon({"notify", "test", "--config", file});
  EXPECT_EQ(all.status, 1);
  EXPECT_THAT(all.output, HasSubstr("bad: not taken (status 404: no such hook)"));
  const test::EndedProcess none =
      run_gnomon({"notify", "test", "--config", file, "--receiver", "nobody"});
  EXPECT_EQ(none.status, 2);
  EXPECT_THAT(none.errors, HasSubstr("one of good, bad"));
  write_file_atomically(file, "threads = 2\n");
  EXPECT_EQ(run_gnomon({"notify", "test", "--config", file}).status, 2);
}

}  // namespace
}  // namespace gnomon::cli
