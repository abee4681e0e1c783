//! Versions: which MongoDB this server behaves like, and its own.

/// The MongoDB release whose behaviour is the reference; what `buildInfo` reports.
pub const COMPATIBLE: &str = "8.2.0";
/// The parts of the compatible version, as `buildInfo.versionArray` has them.
pub const COMPATIBLE_PARTS: [i32; 4] = [8, 2, 0, 0];
/// `featureCompatibilityVersion`.
pub const FEATURE_VERSION: &str = "8.2";
/// The newest wire version: that of MongoDB 8.2.
pub const MAX_WIRE_VERSION: i32 = 27;
/// This program's own version.
pub const OWN: &str = env!("CARGO_PKG_VERSION");
/// What stands for mongod's commit, `gitVersion`: by it clients tell that this is another server.
pub const GIT: &str = concat!("sheaf-", env!("CARGO_PKG_VERSION"));
