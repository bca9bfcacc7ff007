"Install `stackelberg_nb`: every value comes from `settings.ini`, which nbdev reads too."
from configparser import ConfigParser
from pathlib import Path
from setuptools import find_packages, setup

root = Path(__file__).parent
ini = ConfigParser(delimiters=['='])
ini.read(root/'settings.ini', encoding='utf-8')
cfg = ini['DEFAULT']

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    long_description=(root/'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    author=cfg['author'],
    author_email=cfg['author_email'],
    url=cfg['git_url'],
    license={'apache2': 'Apache-2.0'}[cfg['license']],
    keywords=cfg['keywords'].split(),
    packages=find_packages(include=[cfg['lib_path'], cfg['lib_path'] + '.*']),
    package_data={cfg['lib_path']: ['data/*.csv']},   # the paper's tables
    python_requires='>=' + cfg['min_python'],
    install_requires=cfg['requirements'].split(),
    extras_require={'dev': cfg['dev_requirements'].split()},
    entry_points={
        'console_scripts': cfg['console_scripts'].split(),
        'nbdev': [f"{cfg['lib_path']}={cfg['lib_path']}._modidx:d"],
    },
    zip_safe=False,
)
