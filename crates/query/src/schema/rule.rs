//! A schema and its rules.

use sheaf_bson::{DocBuf, OwnedValue};

use crate::matcher::{Regex, TypeSet};

/// A parsed schema.
#[derive(Debug)]
pub struct Schema {
    pub(super) source: DocBuf,
    /// In the order in which mongod reports them.
    pub(super) rules: Vec<Rule>,
}

/// One keyword of a schema (with those that only modify it).
#[derive(Debug)]
pub(super) enum Rule {
    MultipleOf(OwnedValue),
    Maximum {
        bound: OwnedValue,
        exclusive: bool,
    },
    Minimum {
        bound: OwnedValue,
        exclusive: bool,
    },
    MaxLength(i64),
    MinLength(i64),
    Pattern(Regex),
    MinItems(i64),
    MaxItems(i64),
    UniqueItems,
    /// One schema for all items.
    Items(Box<Schema>),
    /// A schema for each of the first items.
    ItemsEach(Vec<Schema>),
    /// For the items from this position on.
    AdditionalItems {
        from: usize,
        allowed: Allowed,
    },
    /// The value is encrypted, and one of these types.
    Encrypt(Option<TypeSet>),
    Properties(Vec<(Box<str>, Schema)>),
    PatternProperties(Vec<(Regex, Schema)>),
    /// For the properties that neither have one of these names nor match one of these patterns.
    AdditionalProperties {
        names: Vec<Box<str>>,
        patterns: Vec<Regex>,
        allowed: Allowed,
    },
    Required(Vec<Box<str>>),
    MinProperties(i64),
    MaxProperties(i64),
    Dependencies(Vec<(Box<str>, Dependency)>),
    AllOf(Vec<Schema>),
    AnyOf(Vec<Schema>),
    OneOf(Vec<Schema>),
    Not(Box<Schema>),
    Enum(Vec<OwnedValue>),
    /// An `enum` for documents that holds none.
    EmptyEnum,
    /// `type` or `bsonType`, whichever it was.
    Type {
        keyword: &'static str,
        types: TypeSet,
    },
    /// No document is of the type that is asked for: the schema as a whole fails.
    Never,
}

/// `additionalItems`, `additionalProperties`: none, or those that satisfy a schema.
#[derive(Debug)]
pub(super) enum Allowed {
    None,
    If(Box<Schema>),
}

/// What a property asks for when it is there.
#[derive(Debug)]
pub(super) enum Dependency {
    Properties(Vec<Box<str>>),
    Schema(Schema),
}

impl Rule {
    /// The keyword.
    pub(super) fn keyword(&self) -> &'static str {
        match self {
            Rule::MultipleOf(_) => "multipleOf",
            Rule::Maximum { .. } => "maximum",
            Rule::Minimum { .. } => "minimum",
            Rule::MaxLength(_) => "maxLength",
            Rule::MinLength(_) => "minLength",
            Rule::Pattern(_) => "pattern",
            Rule::MinItems(_) => "minItems",
            Rule::MaxItems(_) => "maxItems",
            Rule::UniqueItems => "uniqueItems",
            Rule::Items(_) | Rule::ItemsEach(_) => "items",
            Rule::AdditionalItems { .. } => "additionalItems",
            Rule::Encrypt(_) => "encrypt",
            Rule::Properties(_) => "properties",
            Rule::PatternProperties(_) => "patternProperties",
            Rule::AdditionalProperties { .. } => "additionalProperties",
            Rule::Required(_) => "required",
            Rule::MinProperties(_) => "minProperties",
            Rule::MaxProperties(_) => "maxProperties",
            Rule::Dependencies(_) => "dependencies",
            Rule::AllOf(_) => "allOf",
            Rule::AnyOf(_) => "anyOf",
            Rule::OneOf(_) => "oneOf",
            Rule::Not(_) => "not",
            Rule::Enum(_) | Rule::EmptyEnum => "enum",
            Rule::Type { keyword, .. } => keyword,
            Rule::Never => "$jsonSchema",
        }
    }

    /// Where mongod reports the rule: those of one rank in the order in which they are read.
    pub(super) fn rank(&self) -> u8 {
        match self {
            Rule::Properties(_) => 1,
            Rule::AdditionalProperties { .. } => 2,
            Rule::PatternProperties(_) => 3,
            Rule::Required(_) => 4,
            Rule::MinProperties(_) | Rule::MaxProperties(_) | Rule::Dependencies(_) => 5,
            Rule::AllOf(_) | Rule::AnyOf(_) | Rule::OneOf(_) | Rule::Not(_) => 6,
            Rule::Enum(_) | Rule::EmptyEnum => 7,
            Rule::Type { .. } | Rule::Never => 8,
            _ => 0,
        }
    }
}
