//! Tells in the log when the config servers that a router was given cannot be what it needs: until then its clients wait.

use std::sync::Arc;
use std::time::Duration;

use sheaf_bson::doc;
use sheaf_front::log::{self, ids};

use crate::router::Router;

/// How often it is looked.
const LOOK: Duration = Duration::from_secs(1);

/// For so many looks in a row nobody may have answered before it is told; an election takes as long.
const SILENT: u32 = 3;

/// It is told again after so many more.
const AGAIN: u32 = 60;

impl Router {
    /// Watches the config servers, until shutdown.
    pub async fn watch_config_servers(self: Arc<Self>) {
        let mut missed = 0u32;
        while !self.is_shutting_down() {
            missed = match self.without_config_servers() {
                Some(why) => {
                    if missed >= SILENT && (missed - SILENT).is_multiple_of(AGAIN) {
                        self.tell_of_config_servers(&why);
                    }
                    missed + 1
                }
                None => {
                    if missed > SILENT {
                        let attributes = doc! { "configDB": &self.directory.config().address().to_string() };
                        let text = "The config servers answer";
                        log::info("SHARDING", ids::CONFIG_SERVERS, "configServers", text, Some(attributes));
                    }
                    0
                }
            };
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = self.until_shutdown() => {}
            }
        }
    }

    /// Why there are no config servers.
    fn without_config_servers(&self) -> Option<String> {
        let set = self.directory.config();
        match set.is_config() {
            Some(false) => Some(format!("the set '{}' was not started with --configsvr", set.name())),
            _ => set.what_is_missing(),
        }
    }

    fn tell_of_config_servers(&self, why: &str) {
        let attributes = doc! { "configDB": &self.directory.config().address().to_string(), "reason": why };
        let text = "No config server can be reached by --configdb (sharding.configDB): clients wait, and this router goes on trying";
        log::warning("SHARDING", ids::CONFIG_SERVERS, "configServers", text, Some(attributes));
    }
}
