//! Commands that change and describe collections, indexes and databases.

mod capped;
mod coll_mod;
mod coll_stats;
mod compact;
mod compact_encrypted;
mod create;
pub mod create_indexes;
mod data_size;
mod db_hash;
mod db_stats;
mod drop;
mod drop_database;
mod drop_indexes;
mod encrypted_fields;
mod list_collections;
mod list_databases;
mod list_indexes;
mod listing;
pub mod names;
mod re_index;
pub(crate) mod rename;
mod rename_if;
mod room;
mod search_indexes;
mod validate;
pub mod views;

use crate::command::{Entry, RunOnMongod};
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(capped::CloneCollectionAsCapped<'_>),
    registered!(capped::ConvertToCapped<'_>),
    registered!(coll_mod::CollMod<'_>),
    registered!(coll_stats::CollStats<'_>),
    registered!(compact::Compact<'_>),
    registered!(compact_encrypted::CleanupStructuredEncryptionData<'_>),
    registered!(compact_encrypted::CompactStructuredEncryptionData<'_>),
    registered!(create::Create<'_>),
    registered!(create_indexes::CreateIndexes<'_>),
    registered!(data_size::DataSize<'_>),
    registered!(db_hash::DbHash<'_>),
    registered!(db_stats::DbStats),
    registered!(drop::Drop<'_>),
    registered!(drop_database::DropDatabase),
    registered!(drop_indexes::DropIndexes<'_>),
    registered!(list_collections::ListCollections<'_>),
    registered!(list_databases::ListDatabases<'_>),
    registered!(list_indexes::ListIndexes<'_>),
    registered!(re_index::ReIndex<'_>),
    registered!(rename::RenameCollection<'_>),
    registered!(rename_if::RenameIf<'_>),
    registered!(search_indexes::CreateSearchIndexes),
    registered!(search_indexes::DropSearchIndex),
    registered!(search_indexes::ListSearchIndexes),
    registered!(search_indexes::UpdateSearchIndex),
    registered!(validate::Validate<'_>),
];
