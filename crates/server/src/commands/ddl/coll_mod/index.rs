//! What `collMod` changes of an index.

use std::sync::Arc;

use sheaf_bson::{ArrayBuf, DocBuf, RawDoc, Value};
use sheaf_errors::{Code, Error, Result, bail};
use sheaf_exec::ddl::collection_options::with_changes;
use sheaf_storage::{Check, Collection, Cut, Direction, Index};

use super::super::drop_indexes::{find_by_key, is_id};
use crate::args::{At, FromValue, Loose, refuse_twice, safe_i64};
use crate::op::Operation;
use crate::reply::Reply;
use crate::sharding::key_rules;

/// `{name | keyPattern, hidden, expireAfterSeconds, unique, prepareUnique, forceNonUnique}`
pub struct IndexMod<'a> {
    name: Option<&'a str>,
    key_pattern: Option<RawDoc<'a>>,
    hidden: Option<bool>,
    expire_after_seconds: Option<Value<'a>>,
    unique: Option<bool>,
    prepare_unique: Option<bool>,
    force_non_unique: Option<bool>,
}

/// The new specification of an index, and what the reply says of it.
pub struct IndexChange {
    /// As it will be kept.
    pub spec: DocBuf,
    pub(super) expire: Option<(Option<i64>, i64)>,
    pub(super) hidden: Option<(bool, bool)>,
    pub(super) prepare_unique: Option<(bool, bool)>,
    pub(super) unique: bool,
    pub(super) non_unique: bool,
}

fn field<'a, T: FromValue<'a>>(doc: RawDoc<'a>, name: &str) -> Result<Option<T>> {
    T::from_value(doc.get_or_missing(name), &At::new("collMod.index", name))
}

impl<'a> IndexMod<'a> {
    /// Reads the argument.
    ///
    /// Errors: 40415, `TypeMismatch`.
    pub fn parse(doc: RawDoc<'a>) -> Result<Self> {
        const FIELDS: &[&str] = &[
            "name",
            "keyPattern",
            "hidden",
            "expireAfterSeconds",
            "unique",
            "prepareUnique",
            "forceNonUnique",
        ];
        if let Some(unknown) = doc.iter().find(|field| !FIELDS.contains(&field.key())) {
            bail!(40415, "BSON field 'collMod.index.{}' is an unknown field.", unknown.key());
        }
        refuse_twice(doc, "collMod.index")?;
        let expire = doc.get("expireAfterSeconds").filter(|value| !value.is_nullish());
        if let Some(value) = expire.filter(|value| !value.is_number()) {
            bail!(
                Code::TYPE_MISMATCH,
                "BSON field 'collMod.index.expireAfterSeconds' is the wrong type '{}', expected types '[long, int, decimal, double]'",
                value.type_name()
            );
        }
        Ok(IndexMod {
            name: field(doc, "name")?,
            key_pattern: field(doc, "keyPattern")?,
            hidden: field::<Loose>(doc, "hidden")?.map(|flag| flag.0),
            expire_after_seconds: expire,
            unique: field::<Loose>(doc, "unique")?.map(|flag| flag.0),
            prepare_unique: field::<Loose>(doc, "prepareUnique")?.map(|flag| flag.0),
            force_non_unique: field::<Loose>(doc, "forceNonUnique")?.map(|flag| flag.0),
        })
    }

    /// API version 1 promises nothing about what makes an index unique.
    ///
    /// Errors: `APIStrictError`.
    pub fn check_stable(&self) -> Result<()> {
        let given = [
            (self.unique.is_some(), "unique"),
            (self.prepare_unique.is_some(), "prepareUnique"),
            (self.force_non_unique.is_some(), "forceNonUnique"),
        ];
        match given.into_iter().find(|(given, _)| *given) {
            Some((_, name)) => {
                bail!(
                    Code::API_STRICT_ERROR,
                    "BSON field 'collMod.index.{name}' is not allowed with apiStrict:true."
                )
            }
            None => Ok(()),
        }
    }

    /// Whether the index is to become unique.
    pub fn wants_unique(&self) -> bool {
        self.unique == Some(true)
    }

    /// How many things are to change.
    pub fn modifications(&self) -> usize {
        [
            self.hidden.is_some(),
            self.expire_after_seconds.is_some(),
            self.unique.is_some(),
            self.prepare_unique.is_some(),
            self.force_non_unique.is_some(),
        ]
        .into_iter()
        .filter(|given| *given)
        .count()
    }

    /// The key pattern, if it was given.
    pub fn key_pattern(&self) -> Option<RawDoc<'a>> {
        self.key_pattern
    }

    /// The same wish with another key pattern, where it had one.
    pub fn with_key<'b>(&'b self, key: Option<RawDoc<'b>>) -> IndexMod<'b> {
        IndexMod { name: self.name, key_pattern: self.key_pattern.and(key), ..*self }
    }

    /// Checks what can be said without the index.
    ///
    /// Errors: `InvalidOptions`.
    pub fn check(&self) -> Result<()> {
        match (self.name, self.key_pattern) {
            (Some(_), Some(_)) => bail!(Code::INVALID_OPTIONS, "Cannot specify both key pattern and name."),
            (None, None) => bail!(Code::INVALID_OPTIONS, "Must specify either index name or key pattern."),
            _ => {}
        }
        if self.modifications() == 0 {
            bail!(Code::INVALID_OPTIONS, "no expireAfterSeconds, hidden, unique, or prepareUnique field");
        }
        if self.unique.is_some() && self.force_non_unique.is_some() {
            bail!(
                Code::INVALID_OPTIONS,
                "collMod does not support 'unique' and 'forceNonUnique' options at the same time"
            );
        }
        if self.expire_after_seconds.is_some_and(|value| ttl_seconds(value) < 0) {
            bail!(Code::INVALID_OPTIONS, "TTL index 'expireAfterSeconds' option cannot be less than 0");
        }
        Ok(())
    }

    /// The index that is meant.
    ///
    /// Errors: `IndexNotFound`, `AmbiguousIndexKeyPattern`.
    pub fn find<'c>(&self, collection: &'c Collection) -> Result<&'c Arc<Index>> {
        let clustered = |index: &&Arc<Index>| index.spec.as_raw().element("clustered").is_some();
        let (found, shown) = match (self.name, self.key_pattern) {
            (Some(name), _) => (collection.index(name), name.to_owned()),
            (None, key) => {
                let key = key.unwrap_or(RawDoc::EMPTY);
                (find_by_key(collection, key)?, sheaf_bson::value_text(Value::Document(key)))
            }
        };
        if self.hidden.is_some() && found.is_some_and(|index| clustered(&index)) {
            bail!(6011800, "The 'hidden' option is not supported for a clustered index");
        }
        match found.filter(|index| !clustered(index)) {
            Some(index) => Ok(index),
            None => bail!(Code::INDEX_NOT_FOUND, "cannot find index {shown} for ns {}", collection.namespace),
        }
    }

    /// Checks the change against the shard key, where the collection is sharded.
    ///
    /// Errors: `InvalidOptions`.
    pub fn check_shard_key(&self, op: &Operation<'_>, collection: &Collection) -> Result<()> {
        let Some(placed) = op.placed(collection)?.filter(|placed| !placed.unsplittable) else {
            return Ok(());
        };
        let (index, pattern) = (self.find(collection)?, &placed.pattern);
        let hides = self.hidden == Some(true) && !index.hidden;
        if hides && key_rules::is_last_for_key(pattern, collection, index, &[]) {
            bail!(
                Code::INVALID_OPTIONS,
                "can't hide the only compatible index for this collection's shard key"
            );
        }
        let unique = self.prepare_unique == Some(true) || self.unique == Some(true);
        if unique && !key_rules::is_unique_anywhere(pattern, index.key_pattern()) {
            bail!(
                Code::INVALID_OPTIONS,
                "cannot set 'prepareUnique' for index {} with shard key pattern {}",
                sheaf_bson::document_text(index.key_pattern()),
                sheaf_bson::document_text(pattern.document())
            );
        }
        Ok(())
    }

    /// What becomes of the index.
    ///
    /// Errors: `BadValue` for the `_id` index, `InvalidOptions`.
    pub fn change(&self, collection: &Collection) -> Result<IndexChange> {
        let index = self.find(collection)?;
        let before = index.spec.as_raw();
        let mut change = IndexChange {
            spec: DocBuf::new(),
            expire: None,
            hidden: None,
            prepare_unique: None,
            unique: false,
            non_unique: false,
        };
        let mut fields: Vec<(&str, Value<'_>)> = Vec::new();
        let is_unique = index.unique || is_id(index);
        if let Some(value) = self.expire_after_seconds {
            let seconds = check_ttl(index, value)?;
            let old = before.get("expireAfterSeconds").and_then(safe_i64);
            change.expire = Some((old, seconds));
            if old != Some(seconds) {
                let small = i32::try_from(seconds).map_or(Value::Int64(seconds), Value::Int32);
                fields.push(("expireAfterSeconds", small));
            }
        }
        if self.unique == Some(false) {
            bail!(Code::BAD_VALUE, "Cannot make index non-unique");
        }
        if let Some(hidden) = self.hidden {
            if is_id(index) {
                bail!(Code::BAD_VALUE, "can't hide _id index");
            }
            if hidden != index.hidden {
                change.hidden = Some((index.hidden, hidden));
                fields.push(("hidden", flag(hidden)));
            }
        }
        let prepared = before.get("prepareUnique").is_some_and(|v| v.truthy());
        if let Some(prepare) = self.prepare_unique.filter(|prepare| *prepare != prepared && !is_unique) {
            change.prepare_unique = Some((prepared, prepare));
            fields.push(("prepareUnique", flag(prepare)));
        }
        if self.wants_unique() && !is_unique {
            if !prepared {
                bail!(
                    Code::INVALID_OPTIONS,
                    "Cannot make index unique with 'prepareUnique=false'. Run collMod to set it first."
                );
            }
            change.unique = true;
            fields.push(("unique", true.into()));
            fields.push(("prepareUnique", Value::Missing));
        }
        match self.force_non_unique {
            Some(false) => bail!(Code::BAD_VALUE, "'forceNonUnique: false' is not supported"),
            // Documents have their `_id` for a key, whatever an index says.
            Some(true) if index.unique && !is_id(index) => {
                change.non_unique = true;
                fields.push(("unique", Value::Missing));
            }
            _ => {}
        }
        change.spec = with_changes(before, &fields);
        Ok(change)
    }
}

/// A flag is kept only while it is set.
fn flag(on: bool) -> Value<'static> {
    if on { Value::Bool(true) } else { Value::Missing }
}

fn check_ttl(index: &Index, value: Value<'_>) -> Result<i64> {
    if is_id(index) {
        bail!(Code::INVALID_OPTIONS, "the _id field does not support TTL indexes");
    }
    if index.fields.len() > 1 {
        bail!(
            Code::INVALID_OPTIONS,
            "TTL indexes are single-field indexes, compound indexes do not support TTL"
        );
    }
    // More than an int32 holds is as long as an int32 can say.
    Ok(ttl_seconds(value).min(i64::from(i32::MAX)))
}

fn ttl_seconds(value: Value<'_>) -> i64 {
    safe_i64(value).unwrap_or(0)
}

impl IndexChange {
    /// Whether `prepareUnique` changes, beside which nothing else may.
    pub fn prepares_unique(&self) -> bool {
        self.prepare_unique.is_some()
    }

    /// Whether the index becomes unique, or no longer is: its entries are made anew.
    pub fn builds(&self) -> bool {
        self.unique || self.non_unique
    }

    /// Adds the `_old` and `_new` values that changed.
    pub fn report(&self, reply: &mut Reply) {
        if let Some((old, new)) = self.expire {
            if let Some(old) = old {
                reply.append("expireAfterSeconds_old", old);
            }
            reply.append("expireAfterSeconds_new", new);
        }
        if let Some((old, new)) = self.hidden {
            reply.append("hidden_old", old).append("hidden_new", new);
        }
        if let Some((old, new)) = self.prepare_unique {
            reply.append("prepareUnique_old", old).append("prepareUnique_new", new);
        }
        if self.unique {
            reply.append("unique_new", true);
        }
        if self.non_unique {
            reply.append("forceNonUnique_new", true);
        }
    }
}

/// Looks for keys that several documents have.
///
/// Errors: `CannotConvertIndexToUnique`, with the `_id`s in `violations`.
pub fn check_unique(op: &Operation<'_>, collection: &Collection, index: &Index) -> Result<()> {
    let view = op.view()?;
    let mut cursor = view.index(index, Direction::Forward)?;
    let mut more = cursor.seek(Cut::Before(&[]))?;
    let mut violations: Vec<Vec<Vec<u8>>> = Vec::new();
    let mut key: Option<Vec<u8>> = None;
    let mut group: Vec<Vec<u8>> = Vec::new();
    while more {
        op.check_interrupt()?;
        let entry = cursor.entry();
        if key.as_deref() != Some(entry.key) {
            let done = std::mem::take(&mut group);
            if done.len() > 1 {
                violations.push(done);
            }
            key = Some(entry.key.to_vec());
        }
        // A document has a key only once.
        group.push(entry.record_key.to_vec());
        more = cursor.next()?;
    }
    if group.len() > 1 {
        violations.push(group);
    }
    if violations.is_empty() {
        return Ok(());
    }
    let mut list = Vec::new();
    for group in &violations {
        let mut ids = Vec::new();
        for record in group {
            if let Some(doc) = view.get(collection, record)? {
                ids.push(DocBuf::new().with("_id", doc.as_raw().get_or_missing("_id")));
            }
        }
        let ids = ArrayBuf::of(ids.iter().map(|id| id.as_raw().get_or_missing("_id")));
        list.push(sheaf_bson::doc! { "ids": &ids });
    }
    let violations = ArrayBuf::of(list.iter());
    let extra = sheaf_bson::doc! { "violations": &violations };
    Err(Error::new(
        Code::CANNOT_CONVERT_INDEX_TO_UNIQUE,
        "Cannot convert the index to unique. Please resolve conflicting documents before running collMod again.",
    )
    .with_extra(extra.into_bytes()))
}

/// Builds the index anew as one that is unique, or is not; it takes the old one's place when it is ready.
pub fn build(op: &Operation<'_>, namespace: &str, wish: &IndexMod<'_>, check: Check<'_>) -> Result<()> {
    let view = op.view()?;
    let Some(collection) = view.collection(namespace) else {
        bail!(Code::NAMESPACE_NOT_FOUND, "ns does not exist: {namespace}");
    };
    if wish.wants_unique() {
        check_unique(op, collection, wish.find(collection)?)?;
    }
    // As the index is when the build begins: it may be unique by then.
    let wanted = |now: &Collection| {
        check(now)?;
        let change = wish.change(now)?;
        let name = wish.find(now)?.name.clone();
        Ok(change.builds().then_some((name, change.spec)).into_iter().collect())
    };
    let stop = op.interrupter();
    op.note_commit(op.engine().rebuild_indexes(namespace, &wanted, &|| stop.check())?);
    Ok(())
}
