//! Opening folders, crashing them, short ways to write and read.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sheaf_bson::{DocBuf, RawDoc, doc};
use sheaf_errors::Result;

use crate::{
    Collection, CollectionChange, CreateCollection, Direction, Engine, OpTime, Options, Range, Write,
};

pub const GO_ON: &(dyn Fn() -> Result<()> + Sync) = &|| Ok(());
pub const C: &str = "db.c";

pub fn options(path: &Path) -> Options {
    Options {
        cache_bytes: 32 << 20,
        journal_commit_interval: Duration::from_millis(5),
        sync_delay: Duration::ZERO,
        ..Options::new(path)
    }
}

pub fn open(path: &Path) -> Engine {
    Engine::open(options(path)).unwrap()
}

pub fn create(engine: &Engine, namespace: &str, options: DocBuf) {
    let spec = CreateCollection { options, ..CreateCollection::default() };
    engine.create_collection(namespace, &spec, GO_ON).unwrap();
}

/// A fresh folder with `db.c`.
pub fn fresh() -> (tempfile::TempDir, Engine) {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(dir.path());
    create(&engine, C, doc! {});
    (dir, engine)
}

pub fn insert(engine: &Engine, namespace: &str, document: &DocBuf) -> Result<OpTime> {
    let mut unit = engine.write(GO_ON);
    let collection = unit.collection(namespace)?.expect("collection exists");
    unit.insert(&collection, document.as_raw())?;
    unit.commit()
}

/// Replaces the document of the same `_id`, or deletes it.
pub fn change(w: &mut dyn Write, namespace: &str, id: i32, new: Option<&DocBuf>) -> Result<bool> {
    let collection = w.collection(namespace)?.expect("collection exists");
    let key = collection.record_key(id.into())?;
    let Some(old) = w.read_for_update(&collection, &key)? else { return Ok(false) };
    match new {
        Some(new) => w.update(&collection, &key, RawDoc::new(&old), new.as_raw(), None)?,
        None => w.delete(&collection, &key, RawDoc::new(&old))?,
    }
    Ok(true)
}

/// All documents in natural order, as text.
pub fn all(engine: &Engine, namespace: &str) -> Vec<String> {
    let view = engine.view().unwrap();
    let Some(collection) = view.collection(namespace) else { return Vec::new() };
    let mut cursor = view.records(collection, Range::ALL, Direction::Forward).unwrap();
    let mut out = Vec::new();
    while cursor.next().unwrap() {
        out.push(format!("{:?}", cursor.doc()));
    }
    out
}

pub fn assert_valid(engine: &Engine, namespace: &str) {
    let found = engine.validate(namespace, true, GO_ON).unwrap();
    assert!(found.is_valid(), "{:?} {:?}", found.errors, found.index_errors);
}

/// What is on disk now, as a crash of the process would leave it. RocksDB may remove a file while it
/// is being copied, which no crash can look like: then once more.
pub fn crash_copy(from: &Path) -> tempfile::TempDir {
    for _ in 0..20 {
        let to = tempfile::tempdir().unwrap();
        // A compaction that ends meanwhile takes files away that the copied list of files still names.
        let before = manifests(from);
        if copy(from, to.path()).is_ok() && before.is_some() && before == manifests(from) {
            return to;
        }
    }
    panic!("the folder does not hold still");
}

/// RocksDB's lists of its files, byte for byte. `None` while one is exchanged.
fn manifests(folder: &Path) -> Option<std::collections::BTreeMap<PathBuf, Vec<u8>>> {
    let mut found = std::collections::BTreeMap::new();
    let Ok(items) = std::fs::read_dir(folder.join("data")) else { return Some(found) };
    for item in items {
        let path = item.ok()?.path();
        let name = path.file_name()?.to_str()?;
        if name == "CURRENT" || name.starts_with("MANIFEST") {
            found.insert(path.clone(), std::fs::read(&path).ok()?);
        }
    }
    Some(found)
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    for item in std::fs::read_dir(from)? {
        let item = item?.path();
        let target: PathBuf = to.join(item.file_name().unwrap());
        if item.is_dir() {
            std::fs::create_dir_all(&target)?;
            copy(&item, &target)?;
        } else {
            std::fs::copy(&item, &target)?;
        }
    }
    Ok(())
}

pub fn index_spec(key: DocBuf, name: &str, more: DocBuf) -> DocBuf {
    let mut spec = doc! { "v": 2, "key": &key, "name": name };
    spec.edit(|w| {
        w.append_all(more.as_raw());
    });
    spec
}

pub fn build(engine: &Engine, namespace: &str, spec: &DocBuf) -> Result<OpTime> {
    engine.create_indexes(namespace, &[spec.as_raw()], GO_ON)
}

/// The index's entries as `(number of the key, ...)`: record keys in index order.
pub fn index_order(engine: &Engine, namespace: &str, name: &str, direction: Direction) -> Vec<Vec<u8>> {
    let view = engine.view().unwrap();
    let collection = view.collection(namespace).unwrap();
    let mut cursor = view.index(collection.index(name).unwrap(), direction).unwrap();
    let mut out = Vec::new();
    while cursor.next().unwrap() {
        out.push(cursor.record_key().to_vec());
    }
    out
}

pub fn rename(engine: &Engine, from: &str, to: &str, drop_target: bool) -> Result<OpTime> {
    engine.rename_collection(from, to, drop_target, &|_, _| Ok(()), crate::Told::Here, GO_ON)
}

pub fn drop_indexes(engine: &Engine, namespace: &str, names: &[&str]) -> Result<OpTime> {
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    engine.drop_indexes(namespace, &|_| Ok(names.clone()), GO_ON)
}

pub fn set_options(engine: &Engine, namespace: &str, options: DocBuf) -> Result<OpTime> {
    let change = |_: &Collection| {
        Ok(CollectionChange { options: Some(options.clone()), ..CollectionChange::default() })
    };
    engine.coll_mod(namespace, &change, GO_ON)
}
